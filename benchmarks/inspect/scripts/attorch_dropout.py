"""attorch: dropout."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.Dropout(0.3)
x = torch.randn(999, device="cuda", requires_grad=True)
y = m(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
