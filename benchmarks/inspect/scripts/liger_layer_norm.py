"""Liger: layer norm."""

import torch
from liger_kernel.transformers.functional import liger_layer_norm

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
w = torch.rand(300, device="cuda", requires_grad=True)
b = torch.rand(300, device="cuda", requires_grad=True)
y = liger_layer_norm(x, w, b, 1e-6)
r = torch.nn.functional.layer_norm(x, (300,), w, b, 1e-6)
torch.testing.assert_close(y, r, atol=1e-4, rtol=1e-4)
y.backward(torch.randn_like(y))
print(x.grad.sum())
