"""Conch: non-maximum suppression and pooling of points, forward and backward."""

import torch
from conch.ops.vision.bev_pool import bev_pool, bev_pool_backward
from conch.ops.vision.nms import nms

torch.manual_seed(0)
corner, size = torch.rand(70, 2, device="cuda") * 50, torch.rand(70, 2, device="cuda") * 20 + 1
kept = nms(torch.cat([corner, corner + size], 1), torch.rand(70, device="cuda"), 0.5)
print(len(kept), kept.sum().item())

cells = torch.tensor([[0, 0, 0, 0], [1, 2, 0, 0], [3, 1, 0, 1]], device="cuda", dtype=torch.int32)
lengths = torch.tensor([3, 5, 2], device="cuda", dtype=torch.int32)
starts = torch.tensor([0, 3, 8], device="cuda", dtype=torch.int32)
places = cells.repeat_interleave(lengths.long(), 0).contiguous()
features = torch.randn(10, 20, device="cuda")
pooled = bev_pool(features, places, starts, lengths, 2, 1, 4, 4)
torch.testing.assert_close(pooled.sum((0, 1, 2, 3)), features.sum(0), atol=1e-4, rtol=1e-4)
print(bev_pool_backward(torch.randn_like(pooled), places, starts, lengths).sum().item())
