"""AlphaFold 3's attention over residues with a bias from pairs (algorithm 24), from a module's layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tilesmith.fold import attention_pair_bias
from tilesmith.ops.gate import gate as gated
from tilesmith.patch.folding.grid_attention import Layers


def over_samples(
    layers: Layers, variant: str, s: Tensor, z: Tensor, mask: Tensor | None = None, k_in: Tensor | None = None,
    multiplicity: int = 1, model_cache: dict[str, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Boltz's attention: s is [batch · multiplicity, n, channels], and neighbours in s share their pairs.

    Boltz-2 gives keys and values an input of their own, `k_in`, and in diffusion the bias of each head as z. Boltz-1
    keeps that bias between the steps of diffusion in `model_cache`.
    """
    normal = layers.normed("norm", s) if "norm" in layers.layers else s
    bias = None if model_cache is None else model_cache.get("z")
    if bias is None and "edge" not in layers.layers:
        bias = z.permute(0, 3, 1, 2).contiguous()  # heads and samples each read its rows
    update, bias = _attended(layers, normal, normal if k_in is None else k_in, z, mask, bias)
    if model_cache is not None:
        model_cache["z"] = bias
    return update


def over_batches(layers: Layers, variant: str, a: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
    """OpenFold3's and Protenix's attention: a, z and the mask have any batch dimensions, which broadcast."""
    (a,) = _with_lead_of(z, a)
    return _attended_over_batches(layers, layers.normed("norm", a), z, mask)


def conditioned(layers: Layers, variant: str, a: Tensor, z: Tensor, mask: Tensor | None, s: Tensor) -> Tensor:
    """The same in their diffusion modules, where s scales and shifts the norm of a, and gates the update."""
    a, s = _with_lead_of(z, a, s)
    condition = layers.normed("condition norm", s)
    scale, shift = layers.joined(condition, "condition scale", "condition shift")
    normal = layers.normed("norm", a)
    normal = gated(normal, scale.to(normal.dtype)) + shift
    return gated(_attended_over_batches(layers, normal, z, mask), layers.linear("output gate", s))


def _with_lead_of(z: Tensor, *singles: Tensor) -> list[Tensor]:
    """Return tensors [*, n, channels] with the batch dimensions to which they and z broadcast."""
    leads = [one.shape[:-2] for one in singles]
    lead = torch.broadcast_shapes(z.shape[:-3], *leads)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    return [one.expand(*lead, *one.shape[-2:]) for one in singles]


def _attended_over_batches(layers: Layers, normal: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
    lead = normal.shape[:-2]
    flat = normal.reshape(math.prod(lead), *normal.shape[-2:])
    if mask is not None:
        mask = mask.expand(*lead, mask.shape[-1]).reshape(math.prod(lead), mask.shape[-1])
    update, _ = _attended(layers, flat, flat, _with_one_batch(z, lead), mask)
    return update.reshape(normal.shape)


def _with_one_batch(z: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Return pairs with one batch dimension, in which each member serves equally many neighbours in `lead`."""
    own = [1] * (len(lead) + 3 - z.ndim) + list(z.shape[:-3])
    while own and own[-1] == 1:
        own.pop()
    batch, rest = lead[: len(own)], (1,) * (len(lead) - len(own))
    return z.expand(*batch, *rest, *z.shape[-3:]).reshape(math.prod(batch), *z.shape[-3:])


def _attended(
    layers: Layers, x: Tensor, k_in: Tensor, z: Tensor, mask: Tensor | None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the update of x, [batch, n, channels], and the bias of each head: the given one, or that of pairs z."""
    x, k_in = x.to(layers.dtype), k_in.to(layers.dtype)
    heads = layers.weight("edge").shape[0] if bias is None else bias.shape[1]
    q = layers.linear("query", x)
    k, v = layers.joined(k_in, "key", "value")
    q, k, v = (torch.unflatten(one, -1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    update, made = attention_pair_bias(
        x, q, k, v, z.to(layers.dtype) if bias is None else bias, mask, heads, layers.optional_weight("edge"),
        layers.optional_weight("gate"), layers.weight("output"), layers.optional_weight("pair_norm"),
        layers.bias("pair_norm"), layers.bias("edge"), layers.bias("gate"), layers.bias("output"),
        eps=layers.eps("pair_norm"), return_z_proj=True, is_cached_z_proj=bias is not None,
    )  # fmt: skip
    assert made is not None
    return update, made
