"""MegaBlocks: gather tokens into bins of equal capacity, scatter them, and the gradient of the weights."""

import torch
from _bare import bare

bare("megablocks", "megablocks.backend")
from megablocks.backend.kernels import binned_gather, binned_scatter, binned_scatter_wgrad

torch.manual_seed(0)
experts = torch.randint(0, 4, (24,), device="cuda")
bin_ids, indices = torch.sort(experts)
counts = torch.bincount(experts, minlength=4)
bins = counts.cumsum(0).int()
x, weights = torch.randn(24, 160, device="cuda"), torch.rand(24, device="cuda")
gathered = binned_gather(x, indices.int(), None, bins, 24, 1)
y = binned_scatter(gathered, indices.int(), weights, bins, 1)
torch.testing.assert_close(y, x * weights[:, None])
print(binned_scatter_wgrad(gathered, y, indices.int(), bins, 1).sum())
