"""Protenix: dropout of rows and an addition, forward and backward."""

import os

import torch
from _bare import bare

os.environ["FUSED_DROPOUT_RESIDUAL"] = "True"  # off by default
bare("protenix", "protenix.model", "protenix.model.modules")
from protenix.model.modules.fused_ops import dropout_add_rowwise

torch.manual_seed(0)
x = torch.randn(1, 6, 5, 40, device="cuda", requires_grad=True)
y = dropout_add_rowwise(torch.zeros_like(x), x, 0.25, True)
y.backward(torch.ones_like(y))
torch.testing.assert_close(x.grad * x.detach(), y.detach())
