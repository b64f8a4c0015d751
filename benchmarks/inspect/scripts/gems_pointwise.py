"""FlagGems: pointwise."""

import flag_gems
import torch

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
z = torch.randn(7, 200, device="cuda")
with flag_gems.use_gems():
    y = torch.add(x, z) * torch.sigmoid(x)
print(y.sum().cpu())
