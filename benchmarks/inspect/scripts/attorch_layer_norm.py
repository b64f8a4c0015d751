"""attorch: layer norm."""

import attorch
import torch

torch.manual_seed(0)
m = attorch.LayerNorm(100).to("cuda")
x = torch.randn(9, 100, device="cuda", requires_grad=True)
y = m(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
