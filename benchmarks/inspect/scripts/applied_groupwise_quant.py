"""PyTorch's applied-ai: fp8 quantisation by groups of 128."""

import torch
from float8_groupwise_quant import float8_groupwise_quantize

torch.manual_seed(0)
x = torch.randn(9, 384, device="cuda")
y, scales = float8_groupwise_quantize(x, 128)
print(y.float().sum(), scales.sum())
