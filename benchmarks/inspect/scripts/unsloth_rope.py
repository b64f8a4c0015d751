"""unsloth: rotary embedding."""

import _unsloth  # noqa: F401
import torch
from unsloth.kernels.rope_embedding import fast_rope_embedding

torch.manual_seed(0)
q, k = torch.randn(2, 4, 21, 64, device="cuda"), torch.randn(2, 2, 21, 64, device="cuda")
angles = torch.rand(21, 32, device="cuda").repeat(1, 2)
q, k = fast_rope_embedding(q, k, angles.cos(), angles.sin())
print(q.sum(), k.sum())
