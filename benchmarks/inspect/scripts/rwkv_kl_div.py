import torch
from fla.modules.fused_kl_div import FusedKLDivLoss

torch.manual_seed(0)
x = torch.randn(8, 32, device="cuda", requires_grad=True)
target, weight, target_weight = (torch.randn(n, 32, device="cuda") for n in (8, 50, 50))
loss = FusedKLDivLoss()(x, target, weight, target_weight)
loss.backward()
print(loss.item(), x.grad.sum().item())
