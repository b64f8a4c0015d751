"""FlagGems: layernorm."""

import os

import torch

os.environ["GEMS_VENDOR"] = "nvidia"  # FlagGems asks nvidia-smi otherwise
import flag_gems

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
w = torch.rand(200, device="cuda")
b = torch.rand(200, device="cuda")
with flag_gems.use_gems():
    y = torch.nn.functional.layer_norm(x, (200,), w, b)
print(y.cpu().sum())
