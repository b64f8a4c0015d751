"""unsloth: RMS norm."""

from types import SimpleNamespace

import _unsloth  # noqa: F401
import torch
from unsloth.kernels.rms_layernorm import fast_rms_layernorm

torch.manual_seed(0)
norm = SimpleNamespace(weight=torch.randn(320, device="cuda", requires_grad=True), variance_epsilon=1e-6)
x = torch.randn(2, 9, 320, device="cuda", requires_grad=True)
y = fast_rms_layernorm(norm, x)
y.backward(torch.ones_like(y).contiguous())
expected = torch.nn.functional.rms_norm(x.detach().cpu(), (320,), norm.weight.detach().cpu(), 1e-6)
torch.testing.assert_close(y.detach().cpu(), expected, atol=1e-4, rtol=1e-4)
print(x.grad.sum())
