"""flash-linear-attention: conv."""

import torch
from fla.modules.convolution import ShortConvolution

torch.manual_seed(0)
m = ShortConvolution(32, 4).to("cuda")
x = torch.randn(2, 20, 32, device="cuda", requires_grad=True)
y, _ = m(x)
y.backward(torch.randn_like(y))
print(x.grad.sum())
