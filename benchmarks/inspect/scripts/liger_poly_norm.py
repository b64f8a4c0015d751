"""Liger: poly norm."""

import torch
from liger_kernel.transformers.functional import liger_poly_norm

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
w = torch.rand(3, device="cuda", requires_grad=True)
b = torch.rand((), device="cuda", requires_grad=True)
y = liger_poly_norm(x, w, b, in_place=False)
y.backward(torch.randn_like(y))
print(w.grad)
