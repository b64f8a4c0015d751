"""bitsandbytes: 8-bit blockwise quantisation."""

import torch
from _bare import bare

bare("bitsandbytes", "bitsandbytes.backends", "bitsandbytes.backends.triton")
from bitsandbytes.backends.triton.kernels_8bit_quant import dequant_8bit_blockwise, quantize_blockwise_triton

torch.manual_seed(0)
x = torch.randn(1000, device="cuda")
code = torch.linspace(-1, 1, 256, device="cuda")
quantised, absmax = quantize_blockwise_triton(x, code, 128)
y = dequant_8bit_blockwise(quantised, absmax, code, 128, dtype=torch.float32)
assert (x.cpu() - y.cpu()).abs().max() < 0.05
