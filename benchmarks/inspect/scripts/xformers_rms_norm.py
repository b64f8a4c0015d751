"""xFormers: RMS norm."""

import torch
from _bare import bare

bare("xformers", "xformers.ops", "xformers.ops._triton")
from xformers.ops._triton.rmsnorm_kernels import _rms_norm_add_forward, _rms_norm_forward

torch.manual_seed(0)
x, y = torch.randn(13, 500, device="cuda"), torch.randn(13, 500, device="cuda")
weight = torch.randn(500, device="cuda")
expected = torch.nn.functional.rms_norm(x.cpu(), (500,), weight.cpu(), 1e-6)
torch.testing.assert_close(_rms_norm_forward(x, weight, 1e-6).cpu(), expected, atol=1e-4, rtol=1e-4)
print(_rms_norm_add_forward(x, y, weight, 1e-6).sum())
