"""Liger: group norm."""

import torch
from liger_kernel.transformers.functional import liger_group_norm

torch.manual_seed(0)
x = torch.randn(2, 8, 40, device="cuda", requires_grad=True)
w = torch.rand(8, device="cuda", requires_grad=True)
b = torch.rand(8, device="cuda", requires_grad=True)
y = liger_group_norm(x, w, b, 8, 4, 1e-5)
torch.testing.assert_close(y, torch.nn.functional.group_norm(x, 4, w, b, 1e-5), atol=1e-3, rtol=1e-3)
y.backward(torch.randn_like(y))
print(x.grad.sum())
