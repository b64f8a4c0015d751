"""Liger: fused add rms."""

import torch
from liger_kernel.transformers.functional import liger_fused_add_rms_norm

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
r = torch.randn_like(x)
w = torch.rand(300, device="cuda", requires_grad=True)
y, s = liger_fused_add_rms_norm(x, r, w, 1e-6, in_place=False)
(y.sum() + s.sum()).backward()
print(w.grad.sum())
