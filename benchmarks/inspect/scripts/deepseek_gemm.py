"""DeepSeek-V3: a GEMM in fp8 with block scales."""

import torch
from kernel import act_quant, fp8_gemm

torch.manual_seed(0)
x, w = torch.randn(33, 256, device="cuda"), torch.randn(128, 256, device="cuda").to(torch.float8_e4m3fn)
scales = torch.rand(1, 2, device="cuda")
expected = x @ (w.float() * scales.repeat_interleave(128, 1)).T
torch.testing.assert_close(fp8_gemm(*act_quant(x), w, scales), expected, atol=3.0, rtol=0.1)
