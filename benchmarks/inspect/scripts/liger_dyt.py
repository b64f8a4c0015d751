"""Liger: dyt."""

import torch
from liger_kernel.transformers.functional import liger_dyt

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
a = torch.ones(1, device="cuda", requires_grad=True)
g = torch.rand(300, device="cuda", requires_grad=True)
b = torch.rand(300, device="cuda", requires_grad=True)
y = liger_dyt(x, a, g, b)
torch.testing.assert_close(y, g * torch.tanh(a * x) + b, atol=1e-4, rtol=1e-4)
y.backward(torch.randn_like(y))
print(x.grad.sum())
