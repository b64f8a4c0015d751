"""attorch: conv2d."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.Conv2d(3, 4, 3, padding=1).to("cuda")
x = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
y = m(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
