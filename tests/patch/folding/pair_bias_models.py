"""Attention with pair bias with the parameters and arguments of Boltz-1, Boltz-2's diffusion, OpenFold3 and Protenix.

Their code is ours: each is written from AlphaFold 3's algorithm 24, in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from protein_models import CHANNELS, HEADS, SINGLE, BoltzPairBias, Rearranged, linear
from torch import Tensor, nn

HEAD, CONDITION = 6, 10


class Boltz1PairBias(BoltzPairBias):
    def __init__(self, initial_norm: bool = True) -> None:
        super().__init__()
        self.initial_norm = initial_norm
        if initial_norm:
            self.norm_s = nn.LayerNorm(SINGLE)

    def forward(  # type: ignore[override]  # as published
        self, s: Tensor, z: Tensor, mask: Tensor, multiplicity: int = 1,
        to_keys: Callable[[Tensor], Tensor] | None = None, model_cache: dict[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        if self.initial_norm:
            s = self.norm_s(s)
        k_in = s
        if to_keys is not None:
            k_in, mask = to_keys(s), to_keys(mask[..., None])[..., 0]
        cache = {} if model_cache is None else model_cache
        if "z" not in cache:
            cache["z"] = self.proj_z(z)
        return self.attended(s, cache["z"], mask, k_in, multiplicity)


class BoltzHeads(BoltzPairBias):
    """Boltz-2 with `compute_pair_bias=False`: z is the bias of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.proj_z = Rearranged()  # type: ignore[assignment]  # as published


class LayerNorm(nn.Module):
    """A norm with or without a weight and a bias."""

    def __init__(self, channels: int, scale: bool = True, offset: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels)) if scale else None
        self.bias = nn.Parameter(torch.zeros(channels)) if offset else None
        self.eps = 1e-3  # large enough to be seen

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class Adaptive(nn.Module):
    """Algorithm 26, with each project's names of the norms, the scale and the shift."""

    def __init__(self, norm_a: str, norm_s: str, scale: str, shift: str) -> None:
        super().__init__()
        self.names = norm_a, norm_s, scale, shift
        layers = LayerNorm(SINGLE, False, False), LayerNorm(CONDITION, offset=False)
        linears = linear(CONDITION, SINGLE, True), linear(CONDITION, SINGLE)
        for name, layer in zip(self.names, (*layers, *linears), strict=True):
            setattr(self, name, layer)

    def forward(self, a: Tensor, s: Tensor) -> Tensor:
        norm_a, norm_s, scale, shift = (getattr(self, name) for name in self.names)
        condition = norm_s(s)
        made: Tensor = scale(condition).sigmoid() * norm_a(a) + shift(condition)
        return made


class Heads(nn.Module):
    def __init__(self, gating: bool = True) -> None:
        super().__init__()
        width = HEADS * HEAD
        self.linear_q, self.linear_o = linear(SINGLE, width, True), linear(width, SINGLE)
        self.linear_k, self.linear_v = linear(SINGLE, width), linear(SINGLE, width)
        self.linear_g = linear(SINGLE, width) if gating else None

    def forward(self, x: Tensor, biases: list[Tensor], keys: Tensor | None = None) -> Tensor:
        keys = x if keys is None else keys
        q, k, v = (
            layer(one).unflatten(-1, (HEADS, HEAD)).transpose(-2, -3)
            for layer, one in ((self.linear_q, x), (self.linear_k, keys), (self.linear_v, keys))
        )
        scores = q @ k.mT * HEAD**-0.5
        for bias in biases:
            scores = scores + bias
        attended = (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
        made: Tensor = self.linear_o(attended if self.linear_g is None else attended * self.linear_g(x).sigmoid())
        return made


class OpenFold3PairBias(nn.Module):
    def __init__(self, use_ada_layer_norm: bool = False, gating: bool = True) -> None:
        super().__init__()
        self.use_ada_layer_norm, self.inf = use_ada_layer_norm, 1e9
        self.layer_norm_a: nn.Module = LayerNorm(SINGLE)
        if use_ada_layer_norm:
            self.layer_norm_a = Adaptive("layer_norm_a", "layer_norm_s", "linear_g", "linear_s")
            self.linear_ada_out = linear(CONDITION, SINGLE, True)
        self.layer_norm_z = LayerNorm(CHANNELS, offset=not use_ada_layer_norm)
        self.linear_z, self.mha = linear(CHANNELS, HEADS), Heads(gating)

    def forward(
        self, a: Tensor, z: Tensor, s: Tensor | None = None, mask: Tensor | None = None,
        use_deepspeed_evo_attention: bool = False, use_high_precision_attention: bool = False,
    ) -> Tensor:  # fmt: skip
        a = self.layer_norm_a(a, s) if self.use_ada_layer_norm else self.layer_norm_a(a)
        exists = a.new_ones(a.shape[:-1]) if mask is None else mask
        bias = self.linear_z(self.layer_norm_z(z)).movedim(-1, -3)
        a = self.mha(a, [(self.inf * (exists - 1))[..., None, None, :], bias])
        made: Tensor = self.linear_ada_out(s).sigmoid() * a if self.use_ada_layer_norm else a
        return made


class ProtenixPairBias(nn.Module):
    def __init__(self, has_s: bool = True, cross_attention_mode: bool = False) -> None:
        super().__init__()
        self.has_s, self.cross_attention_mode = has_s, cross_attention_mode
        names = "layernorm_a", "layernorm_s", "linear_s", "linear_nobias_s"
        self.layernorm_a: nn.Module = Adaptive(*names) if has_s else LayerNorm(SINGLE)
        if cross_attention_mode:
            self.layernorm_kv = Adaptive(*names)
        self.attention = Heads()
        self.layernorm_z, self.linear_nobias_z = LayerNorm(CHANNELS, offset=not has_s), linear(CHANNELS, HEADS)
        if has_s:
            self.linear_a_last = linear(CONDITION, SINGLE, True)

    def forward(
        self, a: Tensor, s: Tensor | None, z: Tensor, n_queries: int | None = None, n_keys: int | None = None,
        inplace_safe: bool = False, chunk_size: int | None = None, enable_efficient_fusion: bool = False,
    ) -> Tensor:  # fmt: skip
        a = self.layernorm_a(a, s) if self.has_s else self.layernorm_a(a)
        keys = self.layernorm_kv(a, s) if self.cross_attention_mode else a
        z = z if enable_efficient_fusion else self.layernorm_z(z)
        a = self.attention(a, [self.linear_nobias_z(z).movedim(-1, -3)], keys)
        made: Tensor = self.linear_a_last(s).sigmoid() * a if self.has_s else a
        return made
