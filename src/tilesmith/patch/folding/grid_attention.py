"""Attention along the rows or columns of a grid, from a module's layers, and AlphaFold 3's attention with pair bias."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.fold import attention_pair_bias, triangle_attention
from tilesmith.ops.edge_norm import edge_norm
from tilesmith.ops.gate import gate as gated
from tilesmith.ops.layer_norm import layer_norm


class Layers(NamedTuple):
    """The layers of a module by their roles, with parameters in one dtype."""

    module: nn.Module
    layers: dict[str, Any]
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module, paths: dict[str, str], dtype: torch.dtype) -> Layers:
        return cls(module, {role: module.get_submodule(path) for role, path in paths.items()}, dtype)

    def weight(self, role: str) -> Tensor:
        found: Tensor = self.layers[role].weight
        return found.to(self.dtype)

    def bias(self, role: str) -> Tensor | None:
        found: Tensor | None = getattr(self.layers[role], "bias", None)
        return None if found is None else found.to(self.dtype)

    def eps(self, role: str) -> float:
        return float(getattr(self.layers[role], "eps", 1e-5))

    def normed(self, role: str, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight(role), self.bias(role), self.eps(role))

    def linear(self, role: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weight(role), self.bias(role))

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
        return torch.split(F.linear(x, torch.cat(weights), bias), [weight.shape[0] for weight in weights], dim=-1)

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


def with_pair_bias(
    layers: Layers, variant: str, s: Tensor, z: Tensor, mask: Tensor | None, k_in: Tensor, multiplicity: int = 1
) -> Tensor:  # fmt: skip
    """Boltz-2's attention with pair bias: q and the gate from s, k and v from k_in, which are normed already."""
    heads = layers.weight("edge").shape[0]
    q = layers.linear("query", s)
    k, v = layers.joined(k_in, "key", "value")
    q, k, v = (torch.unflatten(one, -1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    output, _ = attention_pair_bias(
        s, q, k, v, z, mask, heads, layers.weight("edge"), layers.weight("gate"), layers.weight("output"),
        layers.weight("pair_norm"), layers.bias("pair_norm"), layers.bias("edge"), layers.bias("gate"),
        layers.bias("output"), eps=layers.eps("pair_norm"),
    )  # fmt: skip
    return output
