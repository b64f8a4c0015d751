"""trifast: triangle attention, forward and backward."""

import torch
from trifast import triangle_attention

torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 24, 24, 16, device="cuda", requires_grad=True) for _ in range(3))
bias = torch.randn(1, 2, 24, 24, device="cuda", requires_grad=True)
mask = torch.zeros(1, 24, 24, device="cuda", dtype=torch.bool)
o = triangle_attention(q, k, v, bias, mask)
scores = torch.einsum("bhijd,bhikd->bhijk", q, k) / 4 + bias[:, :, None]
torch.testing.assert_close(o, scores.softmax(-1) @ v, atol=2e-2, rtol=2e-2)
o.square().sum().backward()
print(q.grad.sum().item(), k.grad.sum().item(), v.grad.sum().item(), bias.grad.sum().item())
