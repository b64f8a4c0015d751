"""Liger: kl div."""

import torch
from liger_kernel.transformers.functional import liger_kl_div

torch.manual_seed(0)
a = torch.randn(5, 201, device="cuda").log_softmax(-1).requires_grad_()
b = torch.randn(5, 201, device="cuda").softmax(-1)
y = liger_kl_div(a, b, reduction="batchmean")
torch.testing.assert_close(y, torch.nn.functional.kl_div(a, b, reduction="batchmean"), atol=1e-4, rtol=1e-3)
y.backward()
print(a.grad.sum())
