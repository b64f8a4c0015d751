import torch
from adasplash import triton_entmax_v1, triton_entmax_v2, triton_sparsemax

torch.manual_seed(0)
for operator in (triton_entmax_v1, triton_entmax_v2, triton_sparsemax):
    x = torch.randn(7, 100, device="cuda", requires_grad=True)
    y = operator(x)
    y.square().sum().backward()
    print(y.sum().item(), x.grad.sum().item())
