"""unsloth: GEGLU."""

import _unsloth  # noqa: F401
import torch
from unsloth.kernels.geglu import geglu_approx_forward_kernel, geglu_exact_backward_kernel, geglu_exact_forward_kernel

torch.manual_seed(0)
gate, up = (torch.randn(2, 5, 300, device="cuda") for _ in range(2))
exact = torch.nn.functional.gelu(gate.cpu()) * up.cpu()
torch.testing.assert_close(geglu_exact_forward_kernel(gate, up).cpu(), exact, atol=1e-4, rtol=1e-4)
print(geglu_approx_forward_kernel(gate, up).sum())
dw, e, g = (torch.randn(10, 300, device="cuda") for _ in range(3))
print(*(one.sum() for one in geglu_exact_backward_kernel(dw, e, g)))
