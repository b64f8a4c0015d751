"""flash-linear-attention: delta rule."""

import torch
from fla.ops.delta_rule import chunk_delta_rule

torch.manual_seed(0)
B, T, Hh, K, V = 1, 70, 2, 32, 32
half = {"device": "cuda", "dtype": torch.bfloat16}  # the library refuses float32
q = torch.randn(B, T, Hh, K, **half, requires_grad=True)
k = torch.nn.functional.normalize(torch.randn(B, T, Hh, K, **half), dim=-1).requires_grad_()
v = torch.randn(B, T, Hh, V, **half, requires_grad=True)
b = torch.rand(B, T, Hh, **half).requires_grad_()
o, _ = chunk_delta_rule(q, k, v, b)
o.backward(torch.randn_like(o))
print(o.sum(), q.grad.sum())
