"""OpenFold 3: softmax with a mask and a bias, forward and backward."""

import torch
from _bare import bare

bare("openfold3", "openfold3.core", "openfold3.core.kernels", "openfold3.core.kernels.triton")
from openfold3.core.kernels.triton.fused_softmax import FusedSoftmaxFunc

torch.manual_seed(0)
x = torch.randn(1, 3, 2, 20, 20, device="cuda", requires_grad=True)
mask, bias = torch.ones(1, 3, 1, 1, 20, device="cuda"), torch.randn(1, 1, 2, 20, 20, device="cuda")
y = FusedSoftmaxFunc.apply(x, mask, bias)
y.backward(torch.randn_like(y))
torch.testing.assert_close(y.detach(), torch.softmax(x.detach() + bias, -1))
print(x.grad.sum())
