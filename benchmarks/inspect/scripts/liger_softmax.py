"""Liger: softmax."""

import torch
from liger_kernel.transformers.functional import liger_softmax

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
y = liger_softmax(x)
torch.testing.assert_close(y, torch.softmax(x, -1), atol=1e-4, rtol=1e-4)
y.backward(torch.randn_like(y))
print(x.grad.sum())
