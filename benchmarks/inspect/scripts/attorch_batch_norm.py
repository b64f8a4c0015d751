"""attorch: batch norm."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.BatchNorm2d(5).to("cuda")
x = torch.randn(4, 5, 6, 6, device="cuda", requires_grad=True)
y = m(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
