"""attorch: linear."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.Linear(40, 30).to("cuda")
x = torch.randn(9, 40, device="cuda", requires_grad=True)
y = m(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
