"""FlagGems: mm."""

import os

import torch

os.environ["GEMS_VENDOR"] = "nvidia"  # FlagGems asks nvidia-smi otherwise
import flag_gems

torch.manual_seed(0)
a = torch.randn(70, 90, device="cuda")
b = torch.randn(90, 50, device="cuda")
with flag_gems.use_gems():
    y = torch.mm(a, b)
torch.testing.assert_close(y.cpu(), a.cpu() @ b.cpu(), atol=1e-3, rtol=1e-3)
