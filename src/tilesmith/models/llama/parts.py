"""The parts that a version chooses, and their implementations in PyTorch.

v1 is the model written naively. v2 uses PyTorch's fast paths: one GEMM for layers that share their input, fused norm
and attention, the fused optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.models.versions import Version


class LayerWeights(NamedTuple):
    """The parameters of a layer: first of its attention block, then of its feed-forward block."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    feed_forward_norm: Tensor
    gate_up: Tensor
    down: Tensor


ComposedLayer = Callable[[Tensor, Tensor | None, Tensor, Tensor, LayerWeights], tuple[Tensor, Tensor | None]]
"""A layer made of its parts: (stream, branch, cos, sin, weights) → (stream, branch)."""

FusedLayer = Callable[
    [ComposedLayer, Tensor, Tensor | None, Tensor, Tensor, LayerWeights, int, float], tuple[Tensor, Tensor | None]
]
"""A layer as one function: (composed layer, stream, branch, cos, sin, weights, head_dim, eps) → (stream, branch)."""


@dataclass(frozen=True)
class Parts:
    """The parts of the model. All choices for a part compute the same."""

    linear: Callable[[Tensor, Tensor], Tensor]
    """x · weightᵀ."""
    projections: Callable[[Tensor, Tensor, Sequence[int]], Sequence[Tensor]]
    """x · weightᵀ, split into these numbers of columns."""
    add_norm: Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]
    """RMSNorm(stream + branch) with a weight and an eps, and the sum; the branch may be None."""
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """Queries and keys [B, H, S, D], rotated by cos and sin [S, D/2]."""
    attention: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Causal attention of q [B, H, S, D] over k and v [B, Hkv, S, D]."""
    gated: Callable[[Tensor, Tensor], Tensor]
    """silu(x · gateᵀ) · (x · upᵀ); the weight holds the rows of gate, then those of up."""
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Mean cross-entropy of the logits x · weightᵀ against targets."""
    embedding: Callable[[Tensor, Tensor], Tensor] = F.embedding
    """table[indices], from indices and table."""
    layer: FusedLayer | None = None
    """A fused layer, or None. It falls back to the composed layer, and computes the same."""


def separate_projections(x: Tensor, weight: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [F.linear(x, part) for part in split(weight, sizes, dim=0)]


def joint_projections(x: Tensor, weight: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return split(F.linear(x, weight), sizes, dim=-1)


def split(x: Tensor, sizes: Sequence[int], dim: int) -> Sequence[Tensor]:
    found: Sequence[Tensor] = x.split(list(sizes), dim)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    return found


def plain_add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = added(stream, branch)
    wide = stream.to(torch.promote_types(stream.dtype, torch.float32))
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normal.to(stream.dtype) * weight, stream


def fused_add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = added(stream, branch)
    return F.rms_norm(stream, (stream.shape[-1],), weight, eps), stream


def added(stream: Tensor, branch: Tensor | None) -> Tensor:
    return stream if branch is None else stream + branch


def plain_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotated(q, cos, sin), rotated(k, cos, sin)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the points whose coordinates are column i of the first half and column i of the second half."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    weights = torch.softmax(scores, -1, dtype=torch.promote_types(q.dtype, torch.float32))
    return torch.matmul(weights.to(v.dtype), v)


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.dtype not in (torch.float16, torch.bfloat16):
        # In float32 PyTorch's fused kernel has no GQA; with enable_gqa PyTorch would store all scores.
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def separately_gated(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = separate_projections(x, weight, [weight.shape[0] // 2] * 2)
    return F.silu(gate) * up


def jointly_gated(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    return F.silu(gate) * up


def logits_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight).flatten(0, -2)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten())


V1 = Version(
    "v1",
    "plain PyTorch",
    Parts(
        linear=F.linear,
        projections=separate_projections,
        add_norm=plain_add_norm,
        rotary=plain_rotary,
        attention=plain_attention,
        gated=separately_gated,
        loss=logits_loss,
    ),
)

V2 = Version(
    "v2",
    "PyTorch fused: joint projections, its own norm and attention kernels, fused optimiser",
    replace(
        V1.parts,
        projections=joint_projections,
        add_norm=fused_add_norm,
        attention=fused_attention,
        gated=jointly_gated,
    ),
    optimizer="fused",
)
