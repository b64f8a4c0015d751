"""flash-linear-attention: layernorm."""

import torch
from fla.modules.layernorm import RMSNorm

torch.manual_seed(0)
m = RMSNorm(96).to("cuda")
x = torch.randn(10, 96, device="cuda", requires_grad=True)
y = m(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
