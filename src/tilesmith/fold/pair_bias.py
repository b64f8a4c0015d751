"""attention_pair_bias as in cuEquivariance: attention over residues with a bias from pairs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.fold.arguments import checked, require_shape
from tilesmith.ops.attention import attention
from tilesmith.ops.edge_norm import edge_norm
from tilesmith.ops.gate import gate as gated
from tilesmith.ops.layer_norm import layer_norm
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.runtime.arguments import require_number

NAME = "attention_pair_bias"
LARGE = 1e4  # e^−10000 is zero in every dtype
NORMS = ("layer_norm", "rms_norm")
Result = tuple[Tensor, Tensor | None]


class Norm(NamedTuple):
    """A norm over the last dimension; "rms_norm" has no bias."""

    kind: str
    eps: float

    def __call__(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return rms_norm(x, weight, self.eps) if self.kind == "rms_norm" else layer_norm(x, weight, bias, self.eps)


class PairBias(NamedTuple):
    """The weights that turn pairs into one bias per head."""

    weight: Tensor | None
    bias: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    is_projected: bool


class Ending(NamedTuple):
    """The weights of the gate, if there is one, and of the output layer, both after attention."""

    gate_weight: Tensor | None
    gate_bias: Tensor | None
    weight: Tensor
    bias: Tensor | None


def with_first_form(current: Callable[..., Result]) -> Callable[..., Result]:
    """Also accept the arguments of cuEquivariance before 0.10: s, q, k and v, already projected, and z."""

    @functools.wraps(current)
    def either(*args: Any, **named: Any) -> Result:
        is_first = "q" in named or (len(args) > 3 and isinstance(args[3], Tensor))
        return _from_heads(*args, **named) if is_first else current(*args, **named)

    return either


@with_first_form
@checked(NAME)
def attention_pair_bias(
    single_repr: Tensor,
    pair_repr: Tensor,
    mask: Tensor | None,
    num_heads: int,
    w_ln_a: Tensor,
    b_ln_a: Tensor | None,
    w_proj_q: Tensor,
    b_proj_q: Tensor | None,
    w_proj_k: Tensor,
    w_proj_v: Tensor,
    w_proj_g: Tensor,
    w_proj_o: Tensor,
    w_proj_z: Tensor | None = None,
    b_proj_o: Tensor | None = None,
    b_proj_z: Tensor | None = None,
    w_ln_z: Tensor | None = None,
    b_ln_z: Tensor | None = None,
    inf: float = 1e6,
    eps: float = 1e-5,
    attn_scale: float | None = None,
    return_z_proj: bool = False,
    is_cached_z_proj: bool = False,
    *,
    b_proj_k: Tensor | None = None,
    b_proj_v: Tensor | None = None,
    w_ln_q: Tensor | None = None,
    b_ln_q: Tensor | None = None,
    w_ln_k: Tensor | None = None,
    b_ln_k: Tensor | None = None,
    b_proj_g: Tensor | None = None,
    norm_kind: str = "layer_norm",
) -> Result:
    """Return attention over residues with a bias from pairs, and the bias where `return_z_proj`, else None.

    a = norm(single_repr); o = proj_o(σ(proj_g(a)) · softmax(scale · q·kᵀ + proj_z(norm(pair_repr))) · v), with q, k
    and v projected from a.

    - `single_repr`: [B·M, N, D]; the M neighbours of each member of the batch share its pairs.
    - `pair_repr`: [B, N, N, channels], or with `is_cached_z_proj` the bias itself, [B, H, N, N], as an earlier call
      returned it.
    - `mask`: [B, N] or [B·M, N], 1 where a residue may be attended to, 0 where its score is lowered by `inf`.
    - `w_proj_q`, `w_proj_k`, `w_proj_v`, `w_proj_g`: [H·head, D]; `w_proj_o`: [D, H·head]; `w_proj_z`: [H, channels].
    - `w_ln_q`, `b_ln_q`, `w_ln_k`, `b_ln_k`: norms of q and k over all heads, where given.
    - `norm_kind`: "layer_norm", or "rms_norm", which takes no bias.
    - `attn_scale`: 1/√head unless given.

    Every argument but the masks has a gradient. Parameters are cast to the dtype of `single_repr`.
    """
    if norm_kind not in NORMS:
        raise ValueError(f"{NAME}: norm_kind is {norm_kind!r}, but must be one of {', '.join(NORMS)}")
    if norm_kind == "rms_norm" and any(one is not None for one in (b_ln_a, b_ln_q, b_ln_k, b_ln_z)):
        raise ValueError(f"{NAME}: norm_kind is rms_norm, but a norm has a bias")
    _require_numbers(inf, eps)
    norm = Norm(norm_kind, eps)
    _require_single(single_repr, w_ln_a, b_ln_a)
    for name, weight, bias in (("q", w_proj_q, b_proj_q), ("k", w_proj_k, b_proj_k), ("v", w_proj_v, b_proj_v)):
        _require_layer(name, weight, bias, w_proj_q.shape[0] if w_proj_q.ndim else 0, single_repr.shape[-1])
    for name, one in (("w_ln_q", w_ln_q), ("b_ln_q", b_ln_q), ("w_ln_k", w_ln_k), ("b_ln_k", b_ln_k)):
        require_shape(NAME, name, one, (w_proj_q.shape[0],))
    a = norm(single_repr, w_ln_a, b_ln_a)
    q, k, v = (
        _linear(a, weight, bias) for weight, bias in ((w_proj_q, b_proj_q), (w_proj_k, b_proj_k), (w_proj_v, b_proj_v))
    )
    if w_ln_q is not None or b_ln_q is not None:
        q = norm(q, w_ln_q, b_ln_q)
    if w_ln_k is not None or b_ln_k is not None:
        k = norm(k, w_ln_k, b_ln_k)
    heads = [_as_heads(one, num_heads) for one in (q, k, v)]
    pairs = PairBias(w_proj_z, b_proj_z, w_ln_z, b_ln_z, is_cached_z_proj)
    bias = _bias_of_pairs(pair_repr, pairs, norm)
    output = _attended(a, heads, bias, mask, Ending(w_proj_g, b_proj_g, w_proj_o, b_proj_o), inf, attn_scale)
    return output, bias if return_z_proj else None


@checked(NAME)
def _from_heads(
    s: Tensor, q: Tensor, k: Tensor, v: Tensor, z: Tensor, mask: Tensor | None, num_heads: int,
    w_proj_z: Tensor | None, w_proj_g: Tensor | None, w_proj_o: Tensor, w_ln_z: Tensor | None = None,
    b_ln_z: Tensor | None = None, b_proj_z: Tensor | None = None, b_proj_g: Tensor | None = None,
    b_proj_o: Tensor | None = None, inf: float = 1e6, eps: float = 1e-5, attn_scale: float | None = None,
    return_z_proj: bool = True, is_cached_z_proj: bool = False,
) -> Result:  # fmt: skip
    """Compute the form before 0.10: q, k and v are [B·M, H, length, head], and s gives the gate.

    Without w_proj_g there is no gate, which cuEquivariance does not have.
    """
    _require_numbers(inf, eps)
    _require_single(s, None, None)
    if q.ndim != 4 or q.shape[:3] != (s.shape[0], num_heads, s.shape[1]):
        raise ValueError(
            f"{NAME}: q has shape {tuple(q.shape)}, but must be [B·M, {num_heads} heads, length, head] as s has "
            f"{tuple(s.shape)}"
        )
    keys = k.shape[2] if k.ndim == 4 else 0
    for name, one in (("k", k), ("v", v)):
        require_shape(NAME, name, one, (*q.shape[:2], keys, q.shape[3]))
    pairs = PairBias(w_proj_z, b_proj_z, w_ln_z, b_ln_z, is_cached_z_proj)
    bias = _bias_of_pairs(z, pairs, Norm("layer_norm", eps))
    output = _attended(s, [q, k, v], bias, mask, Ending(w_proj_g, b_proj_g, w_proj_o, b_proj_o), inf, attn_scale)
    return output, bias if return_z_proj else None


def _bias_of_pairs(z: Tensor, pairs: PairBias, norm: Norm) -> Tensor:
    """Return the bias of each head, [B, H, N, N]."""
    if pairs.is_projected:
        if z.ndim != 4:
            raise ValueError(f"{NAME}: pair_repr has shape {tuple(z.shape)}, but must be [B, H, N, N]")
        return z
    if pairs.weight is None:
        raise ValueError(f"{NAME}: w_proj_z is missing, but must be given unless is_cached_z_proj")
    if z.ndim != 4:
        raise ValueError(f"{NAME}: pair_repr has shape {tuple(z.shape)}, but must be [B, N, N, channels]")
    channels = z.shape[-1]
    _require_layer("z", pairs.weight, pairs.bias, pairs.weight.shape[0] if pairs.weight.ndim else 0, channels)
    require_shape(NAME, "w_ln_z", pairs.norm_weight, (channels,))
    require_shape(NAME, "b_ln_z", pairs.norm_bias, (channels,))
    weight = pairs.weight.to(z.dtype)
    if norm.kind == "layer_norm" and z.shape[1] == z.shape[2]:  # norm and projection in one pass over the pairs
        norm_weight = z.new_ones(z.shape[-1]) if pairs.norm_weight is None else pairs.norm_weight.to(z.dtype)
        norm_bias = None if pairs.norm_bias is None else pairs.norm_bias.to(z.dtype)
        _, bias = edge_norm(z, norm_weight, norm_bias, weight, False, norm.eps)
    else:
        bias = F.linear(norm(z, pairs.norm_weight, pairs.norm_bias), weight).permute(0, 3, 1, 2)
    return bias if pairs.bias is None else bias + pairs.bias.to(bias.dtype)[:, None, None]


def _attended(
    gate_input: Tensor, heads: list[Tensor], bias: Tensor, mask: Tensor | None, ending: Ending, inf: float,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Return the output layer of gated attention. Neighbours that share pairs share the bias in memory."""
    q, k, v = heads
    multiplicity, rest = divmod(q.shape[0], max(bias.shape[0], 1))
    shares_pairs = not rest and bool(q.shape[0]) == bool(bias.shape[0])
    if not shares_pairs or bias.shape[1:] != (q.shape[1], q.shape[2], k.shape[2]):
        raise ValueError(
            f"{NAME}: pair_repr: the pairs have a bias of shape {tuple(bias.shape)}, which does not go with "
            f"{q.shape[0]} sequences of {q.shape[1]} heads, {q.shape[2]} queries and {k.shape[2]} keys"
        )
    if ending.gate_weight is not None:
        _require_layer("g", ending.gate_weight, ending.gate_bias, q.shape[1] * q.shape[-1], gate_input.shape[-1])
    outputs = ending.weight.shape[0] if ending.weight.ndim else 0
    _require_layer("o", ending.weight, ending.bias, outputs, q.shape[1] * q.shape[-1])
    allowed = None if mask is None else _allowed(mask, q, k.shape[2], inf)
    if multiplicity == 1:
        attended = attention(q, k, v, bias=bias, mask=allowed, scale=scale)
    else:
        of = [slice(start, start + multiplicity) for start in range(0, q.shape[0], multiplicity)]
        masks = [None if allowed is None else allowed[some] for some in of]
        parts = [
            attention(q[some], k[some], v[some], bias=bias[n], mask=masks[n], scale=scale) for n, some in enumerate(of)
        ]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
    merged = attended.transpose(1, 2).flatten(2)  # [B·M, N, H·head]
    if ending.gate_weight is not None:
        merged = gated(merged, _linear(gate_input, ending.gate_weight, ending.gate_bias).to(merged.dtype))
    return _linear(merged, ending.weight, ending.bias)


def _allowed(mask: Tensor, q: Tensor, keys: int, inf: float) -> Tensor:
    """Return the mask as attention takes it.

    Scores that are lowered by a large number weigh nothing, so the mask is boolean [B·M, keys]. Where all scores of a
    sequence are lowered, none is. A small number is added to the scores.
    """
    sequences = q.shape[0]
    if mask.ndim != 2 or mask.shape[1] != keys or not mask.shape[0] or sequences % mask.shape[0]:
        raise ValueError(
            f"{NAME}: mask has shape {tuple(mask.shape)}, but must be [B, N] or [B·M, N], here with "
            f"{sequences} sequences of {keys} residues"
        )
    mask = mask.repeat_interleave(sequences // mask.shape[0], dim=0)
    if inf < LARGE:
        return (mask.to(torch.float32)[:, None, None, :] - 1.0) * inf
    exists = mask != 0
    return exists | ~exists.any(-1, keepdim=True)


def _require_numbers(inf: float, eps: float) -> None:
    require_number(NAME, "inf", inf, at_least=0.0)
    require_number(NAME, "eps", eps, at_least=0.0)


def _require_single(single: Tensor, norm_weight: Tensor | None, norm_bias: Tensor | None) -> None:
    if single.ndim != 3:
        raise ValueError(f"{NAME}: single_repr has shape {tuple(single.shape)}, but must be [B·M, N, D]")
    for name, one in (("w_ln_a", norm_weight), ("b_ln_a", norm_bias)):
        require_shape(NAME, name, one, tuple(single.shape[-1:]))


def _require_layer(letter: str, weight: Tensor, bias: Tensor | None, rows: int, columns: int) -> None:
    """Require the shapes of w_proj_… and b_proj_…"""
    require_shape(NAME, f"w_proj_{letter}", weight, (rows, columns))
    require_shape(NAME, f"b_proj_{letter}", bias, (rows,))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _as_heads(x: Tensor, heads: int) -> Tensor:
    if heads < 1 or x.shape[-1] % heads:
        raise ValueError(f"{NAME}: num_heads is {heads}, but must divide the {x.shape[-1]} projected channels")
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)  # [batch, heads, length, head size]
