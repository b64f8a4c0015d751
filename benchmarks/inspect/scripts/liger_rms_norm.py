"""Liger: rms norm."""

import torch
from liger_kernel.transformers.functional import liger_rms_norm

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
w = torch.rand(300, device="cuda", requires_grad=True)
y = liger_rms_norm(x, w, 1e-6, in_place=False)
r = torch.nn.functional.rms_norm(x, (300,), w, 1e-6)
torch.testing.assert_close(y, r, atol=1e-4, rtol=1e-4)
y.backward(torch.randn_like(y))
print(x.grad.sum(), w.grad.sum())
