"""flash-linear-attention: cumsum."""

import torch
from fla.ops.utils.cumsum import chunk_global_cumsum, chunk_local_cumsum

torch.manual_seed(0)
x = torch.randn(1, 100, 4, device="cuda")
a = chunk_local_cumsum(x, 64)
b = chunk_global_cumsum(x)
torch.testing.assert_close(b, x.cumsum(1), atol=1e-4, rtol=1e-4)
print(a.sum())
