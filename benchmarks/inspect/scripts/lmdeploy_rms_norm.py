"""lmdeploy: RMS norm with a residual."""

import torch
from _bare import bare

bare("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels", "lmdeploy.pytorch.kernels.cuda")
from lmdeploy.pytorch.kernels.cuda.rms_norm import rms_norm

torch.manual_seed(0)
x, residual, weight = (torch.randn(*shape, device="cuda") for shape in ((9, 300), (9, 300), (300,)))
y, total = rms_norm(x, weight, 1e-6, residual=residual)
torch.testing.assert_close(total, x + residual)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(total, (300,), weight, 1e-6), atol=1e-4, rtol=1e-4)
