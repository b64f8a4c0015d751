import torch
from fla.modules.token_shift import token_shift
from fla.ops.hgrn import fused_recurrent_hgrn
from fla.ops.rwkv7.fused_k_update import fused_k_rwkv7

torch.manual_seed(0)
x, gate, rate = (torch.randn(2, 9, 64, device="cuda", requires_grad=True) for _ in range(3))
scale = torch.randn(64, device="cuda", requires_grad=True)
token_shift(x).square().sum().backward()
fused_k_rwkv7(x, rate, scale).square().sum().backward()
fused_recurrent_hgrn(x, gate)[0].square().sum().backward()
print(x.grad.sum().item(), gate.grad.sum().item(), rate.grad.sum().item())
