"""flash-linear-attention: l2norm."""

import torch
from fla.modules.l2norm import l2norm

torch.manual_seed(0)
x = torch.randn(10, 96, device="cuda", requires_grad=True)
y = l2norm(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
