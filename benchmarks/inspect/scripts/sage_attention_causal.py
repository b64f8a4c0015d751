"""SageAttention: attention with int8 scores, causal."""

import torch
from _bare import bare

bare("sageattention", "sageattention.triton")
from sageattention.triton.attn_qk_int8_per_block_causal import forward
from sageattention.triton.quant_per_block import per_block_int8

torch.manual_seed(0)
q = torch.randn(1, 4, 200, 64, device="cuda").half()
k, v = (torch.randn(1, 2, 200, 64, device="cuda").half() for _ in range(2))
q_rounded, q_scale, k_rounded, k_scale = per_block_int8(q, k)
y, _ = forward(q_rounded, k_rounded, v, q_scale, k_scale)
k, v = (one.repeat_interleave(2, 1).float() for one in (k, v))
expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k, v, is_causal=True)
torch.testing.assert_close(y.float(), expected, atol=0.03, rtol=0.03)
