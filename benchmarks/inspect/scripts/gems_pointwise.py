"""FlagGems: pointwise."""

import os

import torch

os.environ["GEMS_VENDOR"] = "nvidia"  # FlagGems asks nvidia-smi otherwise
import flag_gems

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
z = torch.randn(7, 200, device="cuda")
with flag_gems.use_gems():
    y = torch.add(x, z) * torch.sigmoid(x)
print(y.sum().cpu())
