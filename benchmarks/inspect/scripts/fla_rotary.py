"""flash-linear-attention: rotary."""

import torch
from fla.modules.rotary import RotaryEmbedding

torch.manual_seed(0)
m = RotaryEmbedding(32).to("cuda")
q = torch.randn(1, 20, 2, 32, device="cuda", requires_grad=True)
k = torch.randn(1, 20, 2, 32, device="cuda")
a, b = m(q, k)
a.backward(torch.randn_like(a))
print(q.grad.sum())
