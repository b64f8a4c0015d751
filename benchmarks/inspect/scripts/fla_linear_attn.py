"""flash-linear-attention: linear attn."""

import torch
from fla.ops.linear_attn import chunk_linear_attn

torch.manual_seed(0)
B, T, Hh, K, V = 1, 70, 2, 32, 32
q = torch.randn(B, T, Hh, K, device="cuda", requires_grad=True)
k = torch.nn.functional.normalize(torch.randn(B, T, Hh, K, device="cuda"), dim=-1).requires_grad_()
v = torch.randn(B, T, Hh, V, device="cuda", requires_grad=True)
o, _ = chunk_linear_attn(q, k, v)
o.backward(torch.randn_like(o))
print(o.sum(), q.grad.sum())
