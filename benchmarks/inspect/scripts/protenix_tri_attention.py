"""Protenix: triangle attention with two biases, forward and backward."""

import torch
from _bare import bare

bare("protenix", "protenix.model")
from protenix.model.tri_attention.op import TriAttention

torch.manual_seed(0)
q, k, v = (torch.randn(1, 20, 20, 2, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
row = torch.randn(1, 20, 1, 1, 20, device="cuda", dtype=torch.bfloat16)
pair = torch.randn(1, 1, 2, 20, 20, device="cuda", dtype=torch.bfloat16, requires_grad=True)
y = TriAttention()(q, k, v, row, pair)
y.backward(torch.ones_like(y))
print(y.sum(), q.grad.sum(), pair.grad.sum())
