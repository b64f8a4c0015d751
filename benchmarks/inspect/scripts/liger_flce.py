"""Liger: flce."""

import torch
from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

torch.manual_seed(0)
x = torch.randn(16, 64, device="cuda", requires_grad=True)
w = torch.randn(301, 64, device="cuda", requires_grad=True)
t = torch.randint(0, 301, (16,), device="cuda")
y = liger_fused_linear_cross_entropy(x, w, t)
r = torch.nn.functional.cross_entropy(x @ w.T, t)
torch.testing.assert_close(y, r, atol=1e-3, rtol=1e-3)
y.backward()
print(w.grad.sum())
