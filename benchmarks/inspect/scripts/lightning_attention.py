"""lightning-attn: linear attention with decay, and a norm, forward and backward."""

import torch
from lightning_attn.ops.triton.lightning_attn2 import lightning_attn2
from lightning_attn.ops.triton.srmsnorm import SimpleRMSNorm

torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 70, 32, device="cuda", requires_grad=True) for _ in range(3))
slope = torch.tensor([0.1, 0.3], device="cuda").reshape(2, 1, 1)
o = lightning_attn2(q, k, v, slope)
age = (torch.arange(70)[:, None] - torch.arange(70)).cuda()
decay = torch.where(age >= 0, torch.exp(-slope * age), torch.zeros(()))
torch.testing.assert_close(o, (q @ k.transpose(-1, -2) * decay) @ v, atol=5e-1, rtol=5e-2)
o.square().sum().backward()
print(q.grad.sum().item(), k.grad.sum().item(), v.grad.sum().item())
x = torch.randn(5, 64, device="cuda", requires_grad=True)
SimpleRMSNorm(64).cuda()(x).square().sum().backward()
print(x.grad.sum().item())
