"""Liger: geglu."""

import torch
from liger_kernel.transformers.functional import liger_geglu

torch.manual_seed(0)
a = torch.randn(4, 300, device="cuda", requires_grad=True)
b = torch.randn(4, 300, device="cuda", requires_grad=True)
r = torch.nn.functional.gelu(a, approximate="tanh") * b
y = liger_geglu(a, b)
torch.testing.assert_close(y, r, atol=1e-3, rtol=1e-3)
y.backward(torch.randn_like(y))
print(a.grad.sum())
