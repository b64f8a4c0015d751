"""PyTorch's applied-ai: a split-K GEMM in fp8, summed with atomics."""

import torch
from scaled_fp8_gemm import scaled_mm_splitk

torch.manual_seed(0)
a = torch.randn(64, 512, device="cuda").to(torch.float8_e4m3fn)
b = torch.randn(64, 512, device="cuda").to(torch.float8_e4m3fn).T
y = scaled_mm_splitk(a, b)
torch.testing.assert_close(y.float(), a.float() @ b.float(), atol=0.5, rtol=0.05)
