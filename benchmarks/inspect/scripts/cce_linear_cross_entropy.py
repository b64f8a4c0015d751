"""Apple's cut cross-entropy: the loss of a linear layer without its logits, forward and backward."""

import torch
from cut_cross_entropy import linear_cross_entropy

torch.manual_seed(0)
e = (torch.randn(70, 64, device="cuda", dtype=torch.bfloat16) / 8).requires_grad_()
c = (torch.randn(300, 64, device="cuda", dtype=torch.bfloat16) / 8).requires_grad_()
targets = torch.randint(0, 300, (70,), device="cuda")
loss = linear_cross_entropy(e, c, targets, filter_eps=None)
loss.backward()
expected = torch.nn.functional.cross_entropy(e.detach().float() @ c.detach().float().T, targets)
torch.testing.assert_close(loss.detach().float(), expected, atol=0.02, rtol=0.02)
print(e.grad.sum(), c.grad.sum())
