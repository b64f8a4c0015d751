"""Attention along the rows or columns of a grid, from a module's layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.fold import triangle_attention
from tilesmith.ops.edge_norm import edge_norm
from tilesmith.ops.gate import gate as gated
from tilesmith.ops.layer_norm import layer_norm


class Layers(NamedTuple):
    """The layers of a module by their roles. Linear layers compute in one dtype, norms in the dtype of their input."""

    module: nn.Module
    layers: dict[str, Any]
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module, paths: dict[str, str], dtype: torch.dtype) -> Layers:
        return cls(module, {role: module.get_submodule(path) for role, path in paths.items()}, dtype)

    def weight(self, role: str) -> Tensor:
        found = self.optional_weight(role)
        if found is None:
            raise TypeError(f"its layer for {role} has no weight")
        return found

    def optional_weight(self, role: str) -> Tensor | None:
        """Return the weight of a layer that the module or its project may not have."""
        found: Tensor | None = getattr(self.layers.get(role), "weight", None)
        return None if found is None else found.to(self.dtype)

    def bias(self, role: str) -> Tensor | None:
        found: Tensor | None = getattr(self.layers.get(role), "bias", None)
        return None if found is None else found.to(self.dtype)

    def eps(self, role: str) -> float:
        found = getattr(self.layers.get(role), "eps", None)
        return 1e-5 if found is None else float(found)

    def normed(self, role: str, x: Tensor) -> Tensor:
        weight, bias = (getattr(self.layers[role], name, None) for name in ("weight", "bias"))
        return layer_norm(x, weight, bias, self.eps(role))

    def linear(self, role: str, x: Tensor) -> Tensor:
        return F.linear(x.to(self.dtype), self.weight(role), self.bias(role))

    def joined(self, x: Tensor, *roles: str) -> tuple[Tensor, ...]:
        """Return several layers of x, computed as one product."""
        weights, biases = [self.weight(role) for role in roles], [self.bias(role) for role in roles]
        bias = None
        if any(one is not None for one in biases):
            made = [
                weight.new_zeros(weight.shape[0]) if one is None else one
                for weight, one in zip(weights, biases, strict=True)
            ]
            bias = torch.cat(made)
        return torch.split(
            F.linear(x.to(self.dtype), torch.cat(weights), bias), [weight.shape[0] for weight in weights], dim=-1
        )

    def edges(self, norm: str, edge: str, x: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
        """Return the normed pairs, and a bias for each head from them, [batch, heads, n, n]."""
        normal, bias = edge_norm(x, self.weight(norm), self.bias(norm), self.weight(edge), transposed, self.eps(norm))
        of_edge = self.bias(edge)
        return normal, bias if of_edge is None else bias + of_edge[:, None, None]


def attended(layers: Layers, normal: Tensor, bias: Tensor | None, mask: Tensor | None, ending: bool) -> Tensor:
    """Return gated attention along the columns of a normed grid, or along its rows if `ending`."""
    inner: Any = layers.module.get_submodule("mha")
    heads = layers.weight("edge").shape[0] if "edge" in layers.layers else int(inner.no_heads)
    *qkv, gate = layers.joined(normal, "query", "key", "value", "gate")
    order = (0, 2, 3, 1, 4) if ending else (0, 1, 3, 2, 4)  # to [batch, sequences, heads, length, head size]
    q, k, v = (torch.unflatten(one, -1, (heads, -1)).permute(order) for one in qkv)
    if mask is not None:
        mask = (mask.transpose(1, 2) if ending else mask)[:, :, None, None, :]
    output = triangle_attention(q, k, v, None if bias is None else bias[:, None], mask)
    assert isinstance(output, Tensor)
    back = output.permute((0, 3, 1, 2, 4) if ending else (0, 1, 3, 2, 4)).flatten(-2)
    return layers.linear("output", gated(back, gate))


def triangle(layers: Layers, variant: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
    ending = variant == "ending"
    return attended(layers, *layers.edges("norm", "edge", x, ending), mask, ending)


def along_rows(
    layers: Layers, variant: str, m: Tensor, z: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:  # fmt: skip
    """OpenFold's attention over an alignment, [batch, sequences, residues, channels], with or without pairs."""
    bias = None
    if z is not None:
        _, bias = layers.edges("pair_norm", "edge", z, False)
    return attended(layers, layers.normed("norm", m), bias, mask, False)
