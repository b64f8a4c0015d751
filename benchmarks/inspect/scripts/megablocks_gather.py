"""MegaBlocks: gather tokens for their experts, padded, and scatter them back."""

import torch
from _bare import bare

bare("megablocks", "megablocks.backend")
from megablocks.backend.kernels import padded_gather, padded_scatter

torch.manual_seed(0)
experts = torch.randint(0, 4, (24,), device="cuda")
bin_ids, indices = torch.sort(experts)
counts = torch.bincount(experts, minlength=4)
bins = counts.cumsum(0).int()
padded = ((counts + 15) // 16 * 16).cumsum(0).int()
x = torch.randn(24, 160, device="cuda")
gathered = padded_gather(x, indices.int(), bin_ids.int(), None, bins, padded, 1)
torch.testing.assert_close(padded_scatter(gathered, indices.int(), bin_ids.int(), None, bins, padded, 1), x)
