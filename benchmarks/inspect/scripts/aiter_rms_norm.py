"""aiter: RMS norm, forward and backward."""

import torch
from _bare import bare

bare("aiter", "aiter.ops", "aiter.ops.triton")
from aiter.ops.triton.normalization.rmsnorm import rms_norm

torch.manual_seed(0)
x = torch.randn(9, 300, device="cuda", requires_grad=True)
weight = torch.randn(300, device="cuda", requires_grad=True)
y = rms_norm(x, weight, 1e-6)
y.backward(torch.ones_like(y))
expected = torch.nn.functional.rms_norm(x.detach(), (300,), weight.detach(), 1e-6)
torch.testing.assert_close(y.detach(), expected, atol=1e-4, rtol=1e-4)
print(x.grad.sum(), weight.grad.sum())
