"""An Evoformer block on PyTorch's fast paths: its attention kernel, and one GEMM for layers that share their input."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.nn.evoformer import (
    GridAttention,
    MSAColumnAttention,
    MSARowAttentionWithPairBias,
    TriangleAttention,
    TriangleMultiplication,
)
from tilesmith.nn.evoformer_reference import PlainEvoformerBlock
from tilesmith.nn.norms import LayerNorm

NO_MASK = "all chains of a batch have the same length, so there is no mask"


class FusedAttention(GridAttention):
    """Attention along the rows of a grid, or along its columns with `side` 2, by PyTorch's own kernel."""

    def of_normed(self, x: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.heads, self.head_size)).unbind(-3)
        along_columns = self.side == 2
        if along_columns:
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        rows = q.shape[1]
        if bias is not None:
            # The kernel takes one bias per sequence: expanded, it is as large as all scores.
            bias = bias[:, None].expand(-1, rows, -1, -1, -1).flatten(0, 1)
        q, k, v = (one.flatten(0, 1).transpose(1, 2) for one in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2)
        attended = attended.reshape(-1, rows, *attended.shape[1:]).flatten(-2)
        attended = attended.transpose(1, 2) if along_columns else attended
        return self.output(attended * torch.sigmoid(self.gate(x)))  # type: ignore[no-any-return]  # a module returns Any


class FusedRowAttention(FusedAttention, MSARowAttentionWithPairBias):
    def forward(
        self, m: Tensor, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        assert mask is None, NO_MASK
        update = self.of_normed(self.norm(m), self.edge(self.pair_norm(z)).permute(0, 3, 1, 2))
        return m + update if residual else update


class FusedColumnAttention(FusedAttention, MSAColumnAttention):
    side = 2

    def forward(
        self, m: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        assert mask is None, NO_MASK
        update = self.of_normed(self.norm(m), None)
        return m + update if residual else update


class FusedTriangleAttention(FusedAttention, TriangleAttention):
    def forward(
        self, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        assert mask is None, NO_MASK
        zn = self.norm(z)
        update = self.of_normed(zn, self.edge(zn).permute((0, 3, 1, 2) if self.starting else (0, 3, 2, 1)))
        return z + update if residual else update


class FusedTriangleMultiplication(TriangleMultiplication):
    """One GEMM for the three layers that read the pairs."""

    def forward(
        self, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        assert mask is None, NO_MASK
        layers = (self.projection, self.gate, self.output_gate)
        weight, bias = torch.cat([one.weight for one in layers]), torch.cat([one.bias for one in layers])
        projected, gate, output_gate = torch.split(
            F.linear(self.norm(z), weight, bias), [one.out_features for one in layers], dim=-1
        )
        a, b = (torch.sigmoid(gate) * projected).permute(0, 3, 1, 2).chunk(2, dim=1)
        product = a @ b.transpose(-1, -2) if self.direction == "outgoing" else a.transpose(-1, -2) @ b
        update: Tensor = torch.sigmoid(output_gate) * self.output(self.output_norm(product.permute(0, 2, 3, 1)))
        return z + update if residual else update


class FusedEvoformerBlock(PlainEvoformerBlock):
    """A block of PyTorch's own operators only, fused where PyTorch has fused ones."""

    PARTS: ClassVar[dict[str, type[nn.Module]]] = {
        **PlainEvoformerBlock.PARTS,
        "row_attention": FusedRowAttention,
        "column_attention": FusedColumnAttention,
        "triangle_attention": FusedTriangleAttention,
        "triangle_multiplication": FusedTriangleMultiplication,
    }

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        for part in list(self.children()):
            for name, layer in part.named_children():
                if isinstance(layer, LayerNorm):  # our LayerNorm, which has the same parameters
                    setattr(part, name, nn.LayerNorm(layer.normalized_shape, layer.eps))
