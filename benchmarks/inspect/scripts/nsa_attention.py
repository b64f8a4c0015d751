"""native-sparse-attention-pytorch: chosen blocks of keys, forward and backward."""

import torch
from _bare import bare

bare("native_sparse_attention_pytorch")
from native_sparse_attention_pytorch.triton_native_sparse_attention import native_sparse_attend

torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 64, 32, device="cuda", requires_grad=True) for _ in range(3))
chosen = torch.zeros(1, 2, 64, 1, device="cuda", dtype=torch.long)
mask = torch.arange(64, device="cuda").ge(16).expand(1, 2, 64)[..., None].contiguous()
o = native_sparse_attend(q, k, v, 16, chosen, mask)
o.square().sum().backward()
print(o.sum().item(), q.grad.sum().item(), k.grad.sum().item(), v.grad.sum().item())
