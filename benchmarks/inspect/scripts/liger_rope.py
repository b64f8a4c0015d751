"""Liger: rope."""

import torch
from liger_kernel.transformers.functional import liger_rope

torch.manual_seed(0)
q = torch.randn(2, 4, 10, 32, device="cuda", requires_grad=True)
k = torch.randn(2, 2, 10, 32, device="cuda", requires_grad=True)
cos = torch.randn(1, 10, 32, device="cuda")
sin = torch.randn(1, 10, 32, device="cuda")
a, b = liger_rope(q, k, cos, sin)
(a.sum() + b.sum()).backward()
print(q.grad.sum())
