"""Mamba: gated RMS norm."""

import torch
from _bare import bare

bare("mamba_ssm", "mamba_ssm.ops")
from mamba_ssm.ops.triton.layernorm_gated import rms_norm_ref, rmsnorm_fn

torch.manual_seed(0)
x = torch.randn(19, 256, device="cuda", requires_grad=True)
z = torch.randn(19, 256, device="cuda", requires_grad=True)
weight = torch.randn(256, device="cuda", requires_grad=True)
y = rmsnorm_fn(x, weight, None, z=z, group_size=64)
y.backward(torch.ones_like(y))
expected = rms_norm_ref(x, weight, None, z=z, group_size=64)
torch.testing.assert_close(y.cpu(), expected.cpu(), atol=1e-4, rtol=1e-4)
print(x.grad.sum(), z.grad.sum())
