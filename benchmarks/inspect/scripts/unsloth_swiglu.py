"""unsloth: SwiGLU."""

import _unsloth  # noqa: F401
import torch
from unsloth.kernels.swiglu import swiglu_DWf_DW_dfg_kernel, swiglu_fg_kernel

torch.manual_seed(0)
e, g = (torch.randn(2, 5, 300, device="cuda") for _ in range(2))
h = swiglu_fg_kernel(e, g)
torch.testing.assert_close(h.cpu(), torch.nn.functional.silu(e.cpu()) * g.cpu(), atol=1e-4, rtol=1e-4)
dw, e, g = (torch.randn(10, 300, device="cuda") for _ in range(3))
print(*(one.sum() for one in swiglu_DWf_DW_dfg_kernel(dw, e, g)))
