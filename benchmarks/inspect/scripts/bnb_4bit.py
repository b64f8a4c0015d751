"""bitsandbytes: 4-bit blockwise quantisation."""

import torch
from _bare import bare

bare("bitsandbytes", "bitsandbytes.backends", "bitsandbytes.backends.triton")
from bitsandbytes.backends.triton.kernels_4bit import dequantize_4bit_impl, quantize_4bit_blockwise_triton

torch.manual_seed(0)
x = torch.randn(2048, device="cuda")
blocks = 2048 // 64
absmax = torch.empty(blocks, device="cuda")
packed = torch.empty(1024, 1, dtype=torch.uint8, device="cuda")
quantize_4bit_blockwise_triton(x, 64, "nf4", blocks, absmax, x.numel(), packed)
y = torch.empty_like(x)
dequantize_4bit_impl(packed, absmax, 64, "nf4", torch.float32, y)
assert (x.cpu() - y.cpu()).abs().max() < 0.7
