"""FlashAttention: RMS norm with a residual."""

import torch
from _bare import bare

bare("flash_attn", "flash_attn.ops")
from flash_attn.ops.triton.layer_norm import rms_norm_fn, rms_norm_ref

torch.manual_seed(0)
x = torch.randn(21, 300, device="cuda", requires_grad=True)
residual = torch.randn(21, 300, device="cuda")
weight = torch.randn(300, device="cuda", requires_grad=True)
y = rms_norm_fn(x, weight, None, residual=residual)
y.backward(torch.ones_like(y))
expected = rms_norm_ref(x, weight, None, residual=residual)
torch.testing.assert_close(y.cpu(), expected.cpu(), atol=1e-4, rtol=1e-4)
print(x.grad.sum())
