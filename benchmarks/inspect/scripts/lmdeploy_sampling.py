"""lmdeploy: draw one token of each row of sorted scores."""

import torch
from _bare import bare

bare("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels", "lmdeploy.pytorch.kernels.cuda")
from lmdeploy.pytorch.kernels.cuda.multinomial_sampling import multinomial_sampling

torch.manual_seed(0)
scores = torch.randn(5, 300, device="cuda").softmax(-1).sort(-1, descending=True)[0]
seeds, offsets = torch.arange(5, device="cuda"), torch.full((5,), 7, device="cuda")
drawn = multinomial_sampling(scores, seeds, offsets)
assert int(drawn.max()) < 300
