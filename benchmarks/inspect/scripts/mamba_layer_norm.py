"""Mamba: layer norm."""

import torch
from _bare import bare

bare("mamba_ssm", "mamba_ssm.ops")
from mamba_ssm.ops.triton.layer_norm import layer_norm_fn, layer_norm_ref

torch.manual_seed(0)
x = torch.randn(37, 200, device="cuda", requires_grad=True)
residual = torch.randn(37, 200, device="cuda")
weight = torch.randn(200, device="cuda", requires_grad=True)
bias = torch.randn(200, device="cuda", requires_grad=True)
y = layer_norm_fn(x, weight, bias, residual=residual)
y.backward(torch.ones_like(y))
torch.testing.assert_close(y.cpu(), layer_norm_ref(x, weight, bias, residual=residual).cpu(), atol=1e-4, rtol=1e-4)
print(x.grad.sum(), weight.grad.sum())
