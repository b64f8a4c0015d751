"""Liger: cross entropy."""

import torch
from liger_kernel.transformers.functional import liger_cross_entropy

torch.manual_seed(0)
x = torch.randn(10, 501, device="cuda", requires_grad=True)
t = torch.randint(0, 501, (10,), device="cuda")
r = torch.nn.functional.cross_entropy(x, t)
y = liger_cross_entropy(x.clone(), t)
torch.testing.assert_close(y, r, atol=1e-4, rtol=1e-4)
y.backward()
print(x.grad.sum())
