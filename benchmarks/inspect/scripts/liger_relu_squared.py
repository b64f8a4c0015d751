"""Liger: relu squared."""

import torch
from liger_kernel.transformers.functional import liger_relu_squared

torch.manual_seed(0)
x = torch.randn(6, 300, device="cuda", requires_grad=True)
y = liger_relu_squared(x)
torch.testing.assert_close(y, torch.relu(x) ** 2)
y.backward(torch.randn_like(y))
print(x.grad.sum())
