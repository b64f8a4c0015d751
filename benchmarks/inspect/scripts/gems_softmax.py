"""FlagGems: softmax."""

import flag_gems
import torch

torch.manual_seed(0)
x = torch.randn(7, 200, device="cuda")
with flag_gems.use_gems():
    y = torch.softmax(x, -1)
torch.testing.assert_close(y.cpu(), torch.softmax(x.cpu(), -1))
