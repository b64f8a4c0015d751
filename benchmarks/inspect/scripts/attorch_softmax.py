"""attorch: softmax."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.Softmax(dim=-1)
x = torch.randn(9, 100, device="cuda", requires_grad=True)
y = m(x)
torch.testing.assert_close(y, torch.softmax(x, -1), atol=1e-4, rtol=1e-4)
y.backward(torch.randn_like(y))
print(x.grad.sum())
