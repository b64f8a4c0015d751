"""The meaning of triangle multiplication in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.layer_norm.operator import native as layer_norm
from tilesmith.ops.triangle_multiply.problem import product_dtype

DIRECTIONS = ("outgoing", "incoming")


def reference(
    z: Tensor, direction: str, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, projection_weight: Tensor,
    gate_weight: Tensor, output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor,
    output_gate_weight: Tensor, projection_bias: Tensor | None = None, gate_bias: Tensor | None = None,
    output_bias: Tensor | None = None, output_gate_bias: Tensor | None = None, eps: float = 1e-5,
    chunk: int | None = None, residual: bool = False,
) -> Tensor:  # fmt: skip
    """All at once: `chunk` is for memory, and means nothing."""
    zn = layer_norm(z, norm_weight, norm_bias, eps)
    gated = torch.sigmoid(F.linear(zn, gate_weight, gate_bias)) * F.linear(zn, projection_weight, projection_bias)
    if mask is not None:
        gated = gated.masked_fill(~mask[..., None], 0.0)
    # Sums over residues may be beyond half precision.
    a, b = gated.to(product_dtype(gated.dtype)).chunk(2, dim=-1)
    x = torch.einsum("bikc,bjkc->bijc" if direction == "outgoing" else "bkic,bkjc->bijc", a, b)
    weight, bias = output_norm_weight.to(x.dtype), output_norm_bias.to(x.dtype)
    xn = layer_norm(x, weight, bias, eps).to(z.dtype)
    opening = torch.sigmoid(F.linear(zn, output_gate_weight, output_gate_bias))
    y = opening * F.linear(xn, output_weight, output_bias)
    return z + y if residual else y
