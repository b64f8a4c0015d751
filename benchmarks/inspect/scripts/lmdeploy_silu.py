"""lmdeploy: SiLU and multiply."""

import torch
from _bare import bare

bare("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels", "lmdeploy.pytorch.kernels.cuda")
from lmdeploy.pytorch.kernels.cuda.activation import silu_and_mul

torch.manual_seed(0)
x = torch.randn(9, 600, device="cuda")
expected = torch.nn.functional.silu(x[:, :300]) * x[:, 300:]
torch.testing.assert_close(silu_and_mul(x), expected, atol=1e-5, rtol=1e-5)
