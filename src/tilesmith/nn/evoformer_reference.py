"""The Evoformer's parts as published, in plain PyTorch: the reference for those of `evoformer`.

Constructors, parameters and state dicts are the same. The computation uses neither our operators nor `chunk`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.nn.evoformer import (
    EvoformerBlock,
    GridAttention,
    MSAColumnAttention,
    MSARowAttentionWithPairBias,
    OuterProductMean,
    Transition,
    TriangleAttention,
    TriangleMultiplication,
)

__all__ = ["PlainEvoformerBlock"]


def norm(layer: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)


def gated_attention(module: GridAttention, x: Tensor, bias: Tensor | None, mask: Tensor | None) -> Tensor:
    """Return gated attention along the columns of x, [batch, rows, columns, channels], which is already normalised."""
    q, k, v = module.query_key_value(x).unflatten(-1, (3, module.heads, module.head_size)).unbind(-3)
    scores = torch.einsum("brihd,brjhd->brhij", q, k) * module.head_size**-0.5
    if bias is not None:
        scores = scores + bias[:, None]
    if mask is not None:
        scores = scores.masked_fill(~mask[:, :, None, None, :], torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:  # a row without any key gets zeros
        weights = weights.masked_fill(~mask[:, :, None, None, :], 0.0)
    attended = torch.einsum("brhij,brjhd->brihd", weights, v)
    return module.output(torch.sigmoid(module.gate(x)) * attended.flatten(-2))  # type: ignore[no-any-return]  # a module returns Any


class PlainTriangleMultiplication(TriangleMultiplication):
    def forward(
        self, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        zn = norm(self.norm, z)
        gated = torch.sigmoid(self.gate(zn)) * self.projection(zn)
        if mask is not None:
            gated = gated * mask[..., None]
        a, b = gated.chunk(2, dim=-1)
        product = torch.einsum("bikc,bjkc->bijc" if self.direction == "outgoing" else "bkic,bkjc->bijc", a, b)
        update: Tensor = torch.sigmoid(self.output_gate(zn)) * self.output(norm(self.output_norm, product))
        return z + update if residual else update


class PlainTriangleAttention(TriangleAttention):
    def forward(
        self, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        """Return the update; the ending node is the starting node of the transposed pairs."""
        zn = norm(self.norm, z)
        zn = zn if self.starting else zn.transpose(1, 2)
        mask = mask if mask is None or self.starting else mask.transpose(1, 2)
        update = gated_attention(self, zn, self.edge(zn).permute(0, 3, 1, 2), mask)
        update = update if self.starting else update.transpose(1, 2)
        return z + update if residual else update


class PlainMSARowAttentionWithPairBias(MSARowAttentionWithPairBias):
    def forward(
        self, m: Tensor, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        bias = self.edge(norm(self.pair_norm, z)).permute(0, 3, 1, 2)
        update = gated_attention(self, norm(self.norm, m), bias, mask)
        return m + update if residual else update


class PlainMSAColumnAttention(MSAColumnAttention):
    def forward(
        self, m: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        transposed = None if mask is None else mask.transpose(1, 2)
        update = gated_attention(self, norm(self.norm, m).transpose(1, 2), None, transposed).transpose(1, 2)
        return m + update if residual else update


class PlainOuterProductMean(OuterProductMean):
    def forward(self, m: Tensor, mask: Tensor | None = None, chunk: int | None = None) -> Tensor:
        m = norm(self.norm, m)
        present = m.new_ones(m.shape[:3]) if mask is None else mask.to(m.dtype)
        a, b = self.left(m) * present[..., None], self.right(m) * present[..., None]
        count = torch.einsum("bsi,bsj->bij", present, present)[..., None]
        outer = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
        return (self.output(outer) / (self.eps + count)).masked_fill(count == 0, 0.0)  # type: ignore[no-any-return]


class PlainTransition(Transition):
    def forward(self, x: Tensor, chunk: int | None = None, *, residual: bool = False) -> Tensor:
        update: Tensor = self.contract(torch.relu(self.expand(norm(self.norm, x))))
        return x + update if residual else update


class PlainEvoformerBlock(EvoformerBlock):
    """An `EvoformerBlock` of PyTorch's own operators only; each loads the other's state dict."""

    PARTS: ClassVar[dict[str, type[torch.nn.Module]]] = {
        "row_attention": PlainMSARowAttentionWithPairBias, "column_attention": PlainMSAColumnAttention,
        "transition": PlainTransition, "outer_product_mean": PlainOuterProductMean,
        "triangle_multiplication": PlainTriangleMultiplication, "triangle_attention": PlainTriangleAttention,
    }  # fmt: skip
