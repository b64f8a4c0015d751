"""attorch: cross entropy."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.CrossEntropyLoss()
x = torch.randn(9, 100, device="cuda", requires_grad=True)
t = torch.randint(0, 100, (9,), device="cuda")
y = m(x, t)
y.backward()
print(y, x.grad.sum())
