"""The versions: v1 and v2 on PyTorch alone, v3 and v4 on Tilesmith's operators.

v3 leaves every separate GEMM to the BLAS. Its forward and backward are one CUDA graph, because the host would take
four times as long to launch them as the GPU to compute. v4 uses everything: a transition is one operator, the loss
never stores all logits, the optimiser is ours, and the whole training step is one graph.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.models.openfold.parts import Parts
from tilesmith.models.openfold.pytorch_fused import FusedEvoformerBlock
from tilesmith.models.small_embedding import small_embedding
from tilesmith.models.versions import Version
from tilesmith.nn.evoformer import EvoformerBlock, Transition
from tilesmith.nn.evoformer_reference import PlainEvoformerBlock
from tilesmith.ops.cross_entropy import cross_entropy
from tilesmith.ops.linear_cross_entropy import linear_cross_entropy
from tilesmith.ops.matmul import matmul


class BlasTransition(Transition):
    """A transition on the BLAS in every dtype."""

    def forward(self, x: Tensor, chunk: int | None = None, *, residual: bool = False) -> Tensor:
        assert chunk is None, "the chains are too short for chunks"
        contracted: Tensor = self.contract(torch.relu(self.expand(self.norm(x))))
        return x + contracted if residual else contracted


class BlasEvoformerBlock(EvoformerBlock):
    PARTS: ClassVar[dict[str, type[nn.Module]]] = {**EvoformerBlock.PARTS, "transition": BlasTransition}


def logits_loss(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight, bias).flatten(0, -2)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten())


def kernel_loss(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = cross_entropy(F.linear(x, weight, bias), targets)
    return loss


def kernel_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    product: Tensor = matmul(x, weight.t(), bias)
    return product


def loss_without_logits(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = linear_cross_entropy(x, weight, targets, bias)
    return loss


V1 = Version("v1", "plain PyTorch, as published", Parts(PlainEvoformerBlock, F.linear, logits_loss))

V2 = Version(
    "v2",
    "PyTorch fused: its own attention kernel, joint projections, fused optimiser",
    replace(V1.parts, block=FusedEvoformerBlock),
    optimizer="fused",
)

V3 = Version(
    "v3",
    "Tilesmith's operators, separate GEMMs by the BLAS, forward and backward as one CUDA graph",
    Parts(BlasEvoformerBlock, F.linear, kernel_loss),
    optimizer="fused",
    captured="passes",
)

V4 = Version(
    "v4",
    "everything: transitions as one operator, no logits, our optimiser, the step as one CUDA graph",
    Parts(EvoformerBlock, kernel_linear, loss_without_logits, small_embedding),
    optimizer="tilesmith",
    captured="step",
)

VERSIONS = {version.name: version for version in (V1, V2, V3, V4)}
