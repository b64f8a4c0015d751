"""The parts on Tilesmith's operators.

v3 leaves GEMMs to the BLAS. Its forward and backward are one CUDA graph. Where a graph is not possible, as with several
processes, each layer is one autograd node; else the host would be slower than the GPU. v4 uses everything: residual
addition and norm are one kernel, the loss never stores all logits, GEMMs are ours where ours are faster (in float32, at
the same accuracy), the optimiser is ours, and the whole training step is one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from tilesmith.models.llama.fused_layer import fused_layer
from tilesmith.models.llama.parts import V2, added, split
from tilesmith.models.small_embedding import small_embedding
from tilesmith.models.versions import Version
from tilesmith.ops.add_rms_norm import add_rms_norm
from tilesmith.ops.attention import attention
from tilesmith.ops.cross_entropy import cross_entropy
from tilesmith.ops.linear_cross_entropy import linear_cross_entropy
from tilesmith.ops.matmul import matmul
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rope import rope
from tilesmith.ops.swiglu import swiglu


def kernel_add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = added(stream, branch)
    return rms_norm(stream, weight, eps), stream


def fused_kernel_add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if branch is None:
        return rms_norm(stream, weight, eps), stream
    normal, stream = add_rms_norm(branch, stream, weight, eps)
    return normal, stream


def kernel_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q, k = rope(q, k, cos, sin, rotary_dim=q.shape[-1])
    return q, k


def kernel_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attended: Tensor = attention(q, k, v, causal=True)
    return attended


def blas_gated(x: Tensor, weight: Tensor) -> Tensor:
    gated: Tensor = swiglu(F.linear(x, weight))
    return gated


def kernel_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = cross_entropy(F.linear(x, weight), targets)
    return loss


def kernel_linear(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = matmul(x, weight.t())
    return product


def kernel_projections(x: Tensor, weight: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return split(kernel_linear(x, weight), sizes, dim=-1)


def kernel_gated(x: Tensor, weight: Tensor) -> Tensor:
    gated: Tensor = swiglu(kernel_linear(x, weight))
    return gated


def loss_without_logits(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = linear_cross_entropy(x, weight, targets)
    return loss


V3 = Version(
    "v3",
    "Tilesmith's operators, GEMMs by the BLAS, forward and backward as one CUDA graph",
    replace(
        V2.parts,
        add_norm=kernel_add_norm,
        rotary=kernel_rotary,
        attention=kernel_attention,
        gated=blas_gated,
        loss=kernel_loss,
        layer=fused_layer,
    ),
    optimizer="fused",
    captured="passes",
)

V4 = Version(
    "v4",
    "everything: residual fused with norm, no logits, our GEMMs and optimiser, the step as one CUDA graph",
    replace(
        V3.parts,
        linear=kernel_linear,
        projections=kernel_projections,
        add_norm=fused_kernel_add_norm,
        gated=kernel_gated,
        loss=loss_without_logits,
        embedding=small_embedding,
        layer=None,  # with the whole step in a graph, launches cost the host nothing
    ),
    optimizer="tilesmith",
    captured="step",
)
