"""Liger: swiglu."""

import torch
from liger_kernel.transformers.functional import liger_swiglu

torch.manual_seed(0)
a = torch.randn(4, 300, device="cuda", requires_grad=True)
b = torch.randn(4, 300, device="cuda", requires_grad=True)
r = torch.nn.functional.silu(a) * b
y = liger_swiglu(a, b)
torch.testing.assert_close(y, r, atol=1e-4, rtol=1e-4)
y.backward(torch.randn_like(y))
print(a.grad.sum())
