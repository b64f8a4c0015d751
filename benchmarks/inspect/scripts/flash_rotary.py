"""FlashAttention: rotary embedding."""

import torch
from _bare import bare

bare("flash_attn", "flash_attn.ops")
from flash_attn.ops.triton.rotary import apply_rotary

torch.manual_seed(0)
x = torch.randn(2, 33, 3, 64, device="cuda")
angles = torch.rand(40, 16, device="cuda")
for interleaved in (False, True):
    y = apply_rotary(x, angles.cos(), angles.sin(), seqlen_offsets=3, interleaved=interleaved)
    print(y.sum())
