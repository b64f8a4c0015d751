"""FlagGems: reductions."""

import os

import torch

os.environ["GEMS_VENDOR"] = "nvidia"  # FlagGems asks nvidia-smi otherwise
import flag_gems

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
with flag_gems.use_gems():
    y = x.sum(1), x.mean(), x.max(), torch.argmax(x, 1), torch.cumsum(x, 1)
print([one.cpu().sum() for one in y])
