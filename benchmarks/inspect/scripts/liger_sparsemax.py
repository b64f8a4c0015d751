"""Liger: sparsemax."""

import torch
from liger_kernel.transformers.functional import liger_sparsemax

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
y = liger_sparsemax(x, -1)
print(y.sum())
y.backward(torch.randn_like(y))
print(x.grad.sum())
