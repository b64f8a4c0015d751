"""Conch: 4-bit quantisation in blocks, and back."""

import torch
from conch.ops.quantization.bitsandbytes.functional import dequantize_4bit, quantize_4bit

torch.manual_seed(0)
x = torch.randn(1920, device="cuda")
for kind in ("fp4", "nf4"):
    packed, state = quantize_4bit(x, blocksize=64, quant_type=kind)
    print((dequantize_4bit(packed, state, quant_type=kind) - x).abs().max().item())
