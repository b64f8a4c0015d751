"""What a version may choose, and how PyTorch alone computes it.

v1 is the model as it is first written down. v2 is what PyTorch offers to make it fast: one product where inputs are
shared, fused norm and attention, the optimiser in one kernel.
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
    """The parameters of a layer: those of its attention, then those of its feed-forward block."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    feed_forward_norm: Tensor
    gate_up: Tensor
    down: Tensor


Composed = Callable[[Tensor, Tensor | None, Tensor, Tensor, LayerWeights], tuple[Tensor, Tensor | None]]
"""A layer put together from its parts: stream, branch, cos, sin and weights in, stream and branch out."""

WholeLayer = Callable[
    [Composed, Tensor, Tensor | None, Tensor, Tensor, LayerWeights, int, float], tuple[Tensor, Tensor | None]
]
"""The same at once. Before what the composition takes comes that itself, behind it the columns of a head and eps."""


@dataclass(frozen=True)
class Parts:
    """What the model is put together from. Every choice for a part has the same meaning."""

    linear: Callable[[Tensor, Tensor], Tensor]
    """x · weightᵀ."""
    projections: Callable[[Tensor, Tensor, Sequence[int]], Sequence[Tensor]]
    """x · weightᵀ in pieces of so many columns."""
    add_norm: Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]
    """The stream with the branch added to it, if there is one, after and before RMSNorm with a weight and an eps."""
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """Queries and keys [B, H, S, D], turned by the angles of cos and sin [S, D/2]."""
    attention: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Causal attention of q [B, H, S, D] over k and v [B, Hkv, S, D]."""
    gated: Callable[[Tensor, Tensor], Tensor]
    """silu(x · gateᵀ) · (x · upᵀ), where one weight holds gate over up."""
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Mean cross-entropy of the logits x · weightᵀ against targets."""
    lookup: Callable[[Tensor, Tensor], Tensor] = F.embedding
    """Rows of a table by their numbers."""
    layer: WholeLayer | None = None
    """A layer at once, if the version has that. It has the composition to fall back on, and computes the same."""


def separate_projections(x: Tensor, weight: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [F.linear(x, piece) for piece in pieces(weight, sizes, dim=0)]


def joint_projections(x: Tensor, weight: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return pieces(F.linear(x, weight), sizes, dim=-1)


def pieces(x: Tensor, sizes: Sequence[int], dim: int) -> Sequence[Tensor]:
    found: Sequence[Tensor] = x.split(list(sizes), dim)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
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
    return turned(q, cos, sin), turned(k, cos, sin)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Column i of the first half and column i of the second half are a point in the plane."""
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
        # In float32 only the kernel without groups is fused; with them PyTorch would write out all scores.
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
