"""attorch: gelu."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.GELU()
x = torch.randn(1000, device="cuda", requires_grad=True)
y = m(x)
torch.testing.assert_close(y, torch.nn.functional.gelu(x), atol=1e-4, rtol=1e-4)
y.backward(torch.randn_like(y))
print(x.grad.sum())
