"""FlagGems: topk."""

import os

import torch

os.environ["GEMS_VENDOR"] = "nvidia"  # FlagGems asks nvidia-smi otherwise
import flag_gems

torch.manual_seed(0)
x = torch.randn(3, 100, device="cuda")
with flag_gems.use_gems():
    v, i = torch.topk(x, 5)
torch.testing.assert_close(v.cpu(), torch.topk(x.cpu(), 5)[0])
