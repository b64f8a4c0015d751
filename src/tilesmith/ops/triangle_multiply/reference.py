"""Triangle multiplication in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.layer_norm.operator import native as layer_norm
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.triangle_multiply.parameters import Parameters
from tilesmith.ops.triangle_multiply.problem import product_dtype

DIRECTIONS = ("outgoing", "incoming")


@flat_arguments
def reference(
    z: Tensor, direction: str, mask: Tensor | None, parameters: Parameters[Tensor], eps: float = 1e-5,
    chunk: int | None = None, residual: bool = False,
) -> Tensor:  # fmt: skip
    """Compute all rows at once. `chunk` saves memory in other implementations and does not change the result."""
    zn = layer_norm(z, parameters.norm_weight, parameters.norm_bias, eps)
    projection = F.linear(zn, parameters.projection_weight, parameters.projection_bias)
    gated = torch.sigmoid(F.linear(zn, parameters.gate_weight, parameters.gate_bias)) * projection
    if mask is not None:
        gated = gated.masked_fill((mask == 0)[..., None], 0.0)
    # Sums over residues may overflow float16.
    a, b = gated.to(product_dtype(gated.dtype)).chunk(2, dim=-1)
    x = torch.einsum("bikc,bjkc->bijc" if direction == "outgoing" else "bkic,bkjc->bijc", a, b)
    weight, bias = parameters.output_norm_weight.to(x.dtype), parameters.output_norm_bias.to(x.dtype)
    xn = layer_norm(x, weight, bias, eps).to(z.dtype)
    output_gate = torch.sigmoid(F.linear(zn, parameters.output_gate_weight, parameters.output_gate_bias))
    y = output_gate * F.linear(xn, parameters.output_weight, parameters.output_bias)
    return z + y if residual else y
