"""Liger: jsd."""

import torch
from liger_kernel.transformers.functional import liger_jsd

torch.manual_seed(0)
a = torch.randn(5, 201, device="cuda").log_softmax(-1).requires_grad_()
b = torch.randn(5, 201, device="cuda").log_softmax(-1)
y = liger_jsd(a, b)
y.backward()
print(y, a.grad.sum())
