"""OpenFold 3: SwiGLU, forward and backward."""

import torch
from _bare import bare

bare("openfold3", "openfold3.core", "openfold3.core.kernels", "openfold3.core.kernels.triton")
from openfold3.core.kernels.triton.swiglu import LigerSiLUMulFunction

torch.manual_seed(0)
a, b = (torch.randn(9, 100, device="cuda", requires_grad=True) for _ in range(2))
y = LigerSiLUMulFunction.apply(a, b)
torch.testing.assert_close(y.detach(), (torch.nn.functional.silu(a) * b).detach(), atol=1e-5, rtol=1e-5)
y.backward(torch.ones_like(y))  # writes the gradients into a and b
print(a.grad.sum())
