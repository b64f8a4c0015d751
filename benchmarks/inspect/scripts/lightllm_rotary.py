"""lightllm: rotary embedding."""

import torch
from _bare import bare

bare("lightllm", "lightllm.models", "lightllm.models.llama", "lightllm.models.llama.triton_kernel")
from lightllm.models.llama.triton_kernel.rotary_emb import rotary_emb_fwd

torch.manual_seed(0)
q = torch.randn(17, 4, 64, device="cuda", dtype=torch.float16)
k = torch.randn(17, 2, 64, device="cuda", dtype=torch.float16)
angles = torch.rand(17, 32, device="cuda")
rotary_emb_fwd(q, k, angles.cos().half(), angles.sin().half())
print(q.float().sum(), k.float().sum())
