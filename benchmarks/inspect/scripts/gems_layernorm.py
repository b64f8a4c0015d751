"""FlagGems: layernorm."""

import flag_gems
import torch

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
w = torch.rand(200, device="cuda")
b = torch.rand(200, device="cuda")
with flag_gems.use_gems():
    y = torch.nn.functional.layer_norm(x, (200,), w, b)
print(y.cpu().sum())
