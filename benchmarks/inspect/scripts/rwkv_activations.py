import torch
from fla.modules.activations import logsigmoid, swiglu, swish

torch.manual_seed(0)
x, y = (torch.randn(3, 5, 60, device="cuda", requires_grad=True) for _ in range(2))
logsigmoid(x).square().sum().backward()
swish(x).square().sum().backward()
swiglu(x, y).square().sum().backward()
print(x.grad.sum().item(), y.grad.sum().item())
