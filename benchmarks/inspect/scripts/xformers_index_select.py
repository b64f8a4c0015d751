"""xFormers: index select and concatenate."""

import torch
from _bare import bare

bare("xformers", "xformers.ops", "xformers.ops._triton")
from xformers.ops._triton.k_index_select_cat import index_select_cat_bwd, index_select_cat_fwd

torch.manual_seed(0)
source = torch.randn(20, 300, device="cuda")
index = torch.tensor([3, 7, 11, 2], device="cuda")
output = torch.empty(4, 300, device="cuda")
index_select_cat_fwd(output, source, index)
assert torch.equal(output.cpu(), source.cpu()[index.cpu()])
grad = torch.zeros_like(source)
index_select_cat_bwd(grad, index, output)
print(grad.sum())
