"""FlagGems: topk."""

import flag_gems
import torch

torch.manual_seed(0)
x = torch.randn(3, 100, device="cuda")
with flag_gems.use_gems():
    v, i = torch.topk(x, 5)
torch.testing.assert_close(v.cpu(), torch.topk(x.cpu(), 5)[0])
