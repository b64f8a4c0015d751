"""FlashAttention: cross-entropy."""

import torch
from _bare import bare

bare("flash_attn", "flash_attn.ops")
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

torch.manual_seed(0)
logits = torch.randn(23, 1000, device="cuda", requires_grad=True)
labels = torch.randint(0, 1000, (23,), device="cuda")
labels[3] = -100
loss, _ = cross_entropy_loss(logits, labels, label_smoothing=0.1)
loss.sum().backward()
expected = torch.nn.functional.cross_entropy(logits.detach().cpu(), labels.cpu(), label_smoothing=0.1, reduction="none")
torch.testing.assert_close(loss.detach().cpu(), expected, atol=1e-3, rtol=1e-3)
print(logits.grad.abs().sum())
