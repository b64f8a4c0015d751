"""xFormers: scaled index add."""

import torch
from _bare import bare

bare("xformers", "xformers.ops", "xformers.ops._triton")
from xformers.ops._triton.k_scaled_index_add import scaled_index_add_fwd

torch.manual_seed(0)
x = torch.randn(12, 4, 128, device="cuda")
index = torch.tensor([3, 7, 11, 2], device="cuda")
source = torch.randn(4, 4, 128, device="cuda")
scaling = torch.randn(128, device="cuda")
expected = x.cpu().clone()
expected[index.cpu()] += 0.5 * scaling.cpu() * source.cpu()
scaled_index_add_fwd(x, index, source, scaling, 0.5)
torch.testing.assert_close(x.cpu(), expected)
