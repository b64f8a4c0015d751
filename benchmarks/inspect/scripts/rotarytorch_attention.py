"""rotary-embedding-torch: attention that rotates its queries and keys, forward and backward."""

import torch
from _bare import bare

bare("rotary_embedding_torch")
from rotary_embedding_torch.flash_attn_with_rotary import flash_attn_with_rotary, get_flash_attention_fused

torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 40, 32, device="cuda", requires_grad=True) for _ in range(3))
angles = torch.outer(torch.arange(40.0), 10000 ** (-torch.arange(16.0) / 16)).repeat_interleave(2, -1).cuda()
o = flash_attn_with_rotary(q, k, v, rotary_pos_emb=angles)
expected = get_flash_attention_fused(force_reference=True)(q, k, v, rotary_pos_emb=angles)
torch.testing.assert_close(o, expected, atol=2e-2, rtol=2e-2)
o.square().sum().backward()
print(q.grad.sum().item(), k.grad.sum().item(), v.grad.sum().item())
