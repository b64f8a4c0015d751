"""The parts of AlphaFold 3's Pairformer that the Evoformer has not, with the parameters of OpenFold3's modules.

The triangle updates are those of `evoformer.py`. Here: attention over residues with a bias from pairs (supplement,
algorithm 24, without conditioning), and the SwiGLU transition (algorithm 11). State dicts are OpenFold3's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked, require_input_of
from tilesmith.nn.norms import LayerNorm
from tilesmith.ops.attention import attention
from tilesmith.ops.edge_norm import edge_norm
from tilesmith.ops.gate import gate
from tilesmith.ops.swiglu import swiglu

__all__ = ["AttentionPairBias", "SwiGLUTransition"]


class _Heads(torch.nn.Module):
    """The projections of attention, as OpenFold3 names them; only that to queries has a bias."""

    def __init__(self, channels: int, heads: int, head_size: int, **placed: Any) -> None:
        super().__init__()
        width = heads * head_size
        self.linear_q = torch.nn.Linear(channels, width, **placed)
        self.linear_k = torch.nn.Linear(channels, width, bias=False, **placed)
        self.linear_v = torch.nn.Linear(channels, width, bias=False, **placed)
        self.linear_g = torch.nn.Linear(channels, width, bias=False, **placed)
        self.linear_o = torch.nn.Linear(width, channels, bias=False, **placed)


@checked
class AttentionPairBias(torch.nn.Module):
    """Attention over residues with a bias from pairs: `update = module(a, z, mask)`.

    a is [batch, residues, channels], z [batch, residues, residues, pair channels], and the boolean mask
    [batch, residues] is true for residues that may be attended to.
    """

    def __init__(self, channels: int, pair_channels: int, heads: int, head_size: int, **placed: Any) -> None:
        super().__init__()
        self.heads = heads
        self.layer_norm_a = LayerNorm(channels, **placed)
        self.layer_norm_z = LayerNorm(pair_channels, **placed)
        self.linear_z = torch.nn.Linear(pair_channels, heads, bias=False, **placed)
        self.mha = _Heads(channels, heads, head_size, **placed)

    def forward(self, a: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
        require_input_of(self.mha.linear_q, "AttentionPairBias", "a", a)
        if a.ndim != 3:
            raise ValueError(
                f"AttentionPairBias: a has shape {tuple(a.shape)}, but must be [batch, residues, channels]"
            )
        norm = self.layer_norm_z
        _, bias = edge_norm(z, norm.weight, norm.bias, self.linear_z.weight, False, norm.eps)
        a = self.layer_norm_a(a)
        layers = (self.mha.linear_q, self.mha.linear_k, self.mha.linear_v)
        q, k, v = (layer(a).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers)
        attended = attention(q, k, v, bias=bias, mask=mask).transpose(1, 2).flatten(2)  # [batch, residues, width]
        update: Tensor = self.mha.linear_o(gate(attended, self.mha.linear_g(a)))
        return update


class _Gated(torch.nn.Module):
    def __init__(self, channels: int, hidden: int, **placed: Any) -> None:
        super().__init__()
        self.linear_a = torch.nn.Linear(channels, hidden, bias=False, **placed)
        self.linear_b = torch.nn.Linear(channels, hidden, bias=False, **placed)


@checked
class SwiGLUTransition(torch.nn.Module):
    """A norm, silu(linear_a) · linear_b with `factor` times the channels, and a linear layer. Of any rank."""

    def __init__(self, channels: int, factor: int = 4, **placed: Any) -> None:
        super().__init__()
        self.layer_norm = LayerNorm(channels, **placed)
        self.swiglu = _Gated(channels, factor * channels, **placed)
        self.linear_out = torch.nn.Linear(factor * channels, channels, bias=False, **placed)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the update, zero where the mask, of the shape of x without channels, is zero."""
        require_input_of(self.swiglu.linear_a, "SwiGLUTransition", "x", x)
        if mask is not None and (not isinstance(mask, Tensor) or mask.is_nested or mask.shape != x.shape[:-1]):
            raise ValueError("SwiGLUTransition: mask must be a tensor with the shape of x without channels")
        x = self.layer_norm(x)
        weight = torch.cat((self.swiglu.linear_a.weight, self.swiglu.linear_b.weight))
        update: Tensor = self.linear_out(swiglu(torch.nn.functional.linear(x, weight)))
        return update if mask is None else update * mask[..., None].to(update.dtype)
