"""FlashSinkhorn: optimal transport between two clouds of points, forward and backward."""

import torch
from flash_sinkhorn.samples_loss import SamplesLoss

torch.manual_seed(0)
x = torch.rand(90, 3, device="cuda", requires_grad=True)
y = torch.rand(70, 3, device="cuda")
loss = SamplesLoss("sinkhorn", blur=0.3, scaling=0.5)(x, y)
loss.backward()
print(loss.item(), x.grad.sum().item())
