"""FlagGems: softmax."""

import os

import torch

os.environ["GEMS_VENDOR"] = "nvidia"  # FlagGems asks nvidia-smi otherwise
import flag_gems

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
with flag_gems.use_gems():
    y = torch.softmax(x, -1)
torch.testing.assert_close(y.cpu(), torch.softmax(x.cpu(), -1))
