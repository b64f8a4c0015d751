"""flash-linear-attention: fused ce."""

import torch
from fla.modules.fused_cross_entropy import FusedCrossEntropyLoss

torch.manual_seed(0)
x = torch.randn(10, 501, device="cuda", requires_grad=True)
t = torch.randint(0, 501, (10,), device="cuda")
y = FusedCrossEntropyLoss()(x, t)
y.backward()
print(y, x.grad.sum())
