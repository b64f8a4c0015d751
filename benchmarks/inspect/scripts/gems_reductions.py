"""FlagGems: reductions."""

import flag_gems
import torch

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
with flag_gems.use_gems():
    y = x.sum(1), x.mean(), x.max(), torch.argmax(x, 1), torch.cumsum(x, 1)
print([one.cpu().sum() for one in y])
