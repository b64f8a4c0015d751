"""Attention, and the functions for protein models, written anew in float64: one query after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from drawn.references import layer_norm, linear, rms_norm, sigmoid, softmax

Window = tuple[int, int]
_units_of_lse = 0.0


@contextmanager
def rounded_lse(unit: float) -> Iterator[None]:
    """Let all weights of a query have the relative error that lse has when it is kept with this relative precision.

    Kernels keep lse for their backward, where a weight is exp(score − lse): with huge scores even a weight of one is
    off, which no rounding of scores or weights shows.
    """
    global _units_of_lse
    _units_of_lse = unit
    try:
        yield
    finally:
        _units_of_lse = 0.0


def attended(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None, scale: float, softcap: float = 0.0
) -> Tensor:  # fmt: skip
    """Return the attention of queries [Q, D] to the keys [K, D] that each sees; zeros for a query that sees none."""
    rows = []
    for query in range(len(q)):
        visible = seen[query]
        scores = (k[visible] * q[query]).sum(-1) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[query][visible]
        if bool((scores == -torch.inf).all()):  # sees nothing, or an infinite bias gives all that it sees no weight
            rows.append((scores.exp()[:, None] * v[visible]).sum(0))
            continue
        weights = softmax(scores, 0) * (1 + _units_of_lse * scores.detach().logsumexp(0).abs())
        rows.append((weights[:, None] * v[visible]).sum(0))
    return torch.stack(rows) if rows else q * 1


def _position_mask(queries: int, keys: int, causal: bool, window: Window | None) -> Tensor:
    own = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen &= key <= own
    if window is not None:
        seen &= (key >= own - window[0]) | (window[0] == -1)
        seen &= (key <= own + window[1]) | (window[1] == -1)
    return seen


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, bias: Tensor | None = None, mask: Tensor | None = None,
    scale: float | None = None, window: Window | None = None, softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    batch, heads, queries, head = q.shape
    keys, group = k.shape[2], heads // max(k.shape[1], 1)
    scale = head**-0.5 if scale is None else scale
    if mask is not None and mask.is_floating_point():
        bias, mask = mask if bias is None else mask + bias, None
    if mask is not None:
        mask = mask[:, None, None] if mask.ndim == 2 and mask.shape == (batch, keys) else mask
        mask = mask.expand(batch, heads, queries, keys)
    bias = None if bias is None else bias.expand(batch, heads, queries, keys)
    positions = _position_mask(queries, keys, causal, window)
    made = [
        attended(q[one, which], k[one, which // group], v[one, which // group],
                 positions if mask is None else positions & mask[one, which],
                 None if bias is None else bias[one, which], scale, softcap)
        for one in range(batch) for which in range(heads)
    ]  # fmt: skip
    return torch.stack(made).view(q.shape) if made else q * 1


def _attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None = None, **options: Any
) -> Tensor:  # fmt: skip
    key_starts = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    made = []
    for (first, last), (key_first, key_last) in zip(
        pairwise(cu_seqlens.tolist()), pairwise(key_starts.tolist()), strict=True
    ):
        heads = q[first:last], k[key_first:key_last], v[key_first:key_last]
        one_q, one_k, one_v = (one.transpose(0, 1)[None] for one in heads)
        made.append(_attention(one_q, one_k, one_v, **options)[0].transpose(0, 1))
    return torch.cat(made) if made else q * 1


def _grid_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, gate: Tensor | None,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Return attention along the second grid dimension of [batch, rows, columns, heads, head size]."""
    rows = []
    for batch in range(q.shape[0]):
        for row in range(q.shape[1]):
            one_q, one_k, one_v = (one[batch, row].transpose(0, 1)[None] for one in (q, k, v))
            its_bias = None if bias is None else bias[batch][None]
            its_mask = None if mask is None else mask[batch, row][None, None, None]
            made = _attention(one_q, one_k, one_v, bias=its_bias, mask=its_mask, scale=scale)
            rows.append(made[0].transpose(0, 1))
    made = torch.stack(rows).view(q.shape) if rows else q * 1
    return made if gate is None else made * sigmoid(gate)


def _row_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    gate: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    return _grid_attention(q, k, v, bias, mask, gate, scale)


def _column_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    gate: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    gate = None if gate is None else gate.transpose(1, 2)
    mask = None if mask is None else mask.transpose(1, 2)
    return _grid_attention(q, k, v, bias, mask, gate, scale).transpose(1, 2)


def _triangle_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, starting: bool = True,
    gate: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    if starting:
        return _row_attention(q, k, v, bias, mask, gate, scale)
    return _column_attention(q, k, v, None if bias is None else bias.transpose(-1, -2), mask, gate, scale)


def _attention_update(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, query_key_value_weight: Tensor, gate_weight: Tensor,
    gate_bias: Tensor, output_weight: Tensor, output_bias: Tensor, heads: int, along_columns: bool,
    edge_weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, eps: float, residual: bool,
) -> Tensor:  # fmt: skip
    normed = layer_norm(x, norm_weight, norm_bias, eps)
    width = gate_weight.shape[0]
    parts = (query_key_value_weight[part * width : (part + 1) * width] for part in range(3))
    q, k, v = (torch.unflatten(linear(normed, part), -1, (heads, -1)) for part in parts)
    gate = torch.unflatten(linear(normed, gate_weight, gate_bias), -1, (heads, -1))
    if edge_weight is not None:
        bias = linear(normed, edge_weight).movedim(-1, 1)
        bias = bias if along_columns else bias.transpose(-1, -2)
    attend = _row_attention if along_columns else _column_attention
    made = linear(attend(q, k, v, bias, mask, gate).flatten(-2), output_weight, output_bias)
    return x + made if residual else made


def _triangle_multiply(
    z: Tensor, direction: str, mask: Tensor | None, norm_weight: Tensor | None, norm_bias: Tensor | None,
    projection_weight: Tensor, gate_weight: Tensor, output_norm_weight: Tensor | None,
    output_norm_bias: Tensor | None, output_weight: Tensor, output_gate_weight: Tensor,
    projection_bias: Tensor | None = None, gate_bias: Tensor | None = None, output_bias: Tensor | None = None,
    output_gate_bias: Tensor | None = None, eps: float = 1e-5, chunk: int | None = None, residual: bool = False,
) -> Tensor:  # fmt: skip
    normed = layer_norm(z, norm_weight, norm_bias, eps)
    pairs = sigmoid(linear(normed, gate_weight, gate_bias)) * linear(normed, projection_weight, projection_bias)
    if mask is not None:
        pairs = torch.where(mask[..., None], pairs, torch.zeros_like(pairs))
    hidden = projection_weight.shape[0] // 2
    a, b = pairs[..., :hidden], pairs[..., hidden:]
    if direction == "incoming":
        a, b = a.transpose(1, 2), b.transpose(1, 2)
    joined = (a[:, :, None] * b[:, None]).sum(3)
    made = linear(layer_norm(joined, output_norm_weight, output_norm_bias, eps), output_weight, output_bias)
    made = made * sigmoid(linear(normed, output_gate_weight, output_gate_bias))
    return z + made if residual else made


def _outer_product_mean(
    a: Tensor, b: Tensor, mask: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    chunk: int | None = None, eps: float = 1e-3,
) -> Tensor:  # fmt: skip
    mask = torch.ones(a.shape[:3], dtype=torch.bool) if mask is None else mask
    a, b = (torch.where(mask[..., None], one, torch.zeros_like(one)) for one in (a, b))
    count = (mask[:, :, :, None] & mask[:, :, None, :]).sum(1)
    outer = (a[:, :, :, None, :, None] * b[:, :, None, :, None, :]).sum(1)
    if weight is not None:
        outer = linear(outer.flatten(-2), weight, bias)
    elif bias is not None:
        outer = outer + bias
    count = count[(...,) + (None,) * (outer.ndim - 3)]
    made = outer / (eps + count.clamp(min=1).double())
    return torch.where(count > 0, made, torch.zeros_like(made))


def _fold_triangle_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None = None, scale: float | None = None,
    kv_lengths: Tensor | None = None,
) -> Tensor:  # fmt: skip
    batch, rows, heads, queries, _ = q.shape
    keys = k.shape[3]
    made = []
    for one in range(batch):
        for row in range(rows):
            seen = torch.ones(keys, dtype=torch.bool)
            if mask is not None:
                seen = mask.expand(batch, rows, 1, 1, keys)[one, row, 0, 0].bool()
            if kv_lengths is not None:
                seen = torch.arange(keys) < kv_lengths[one, row].flatten()
            its_bias = None if bias is None else bias.expand(batch, rows, heads, queries, keys)[one, row][None]
            output = _attention(q[one, row][None], k[one, row][None], v[one, row][None], bias=its_bias,
                                mask=seen[None, None, None], scale=scale)[0]  # fmt: skip
            if mask is not None and keys and not seen.any():
                output = (v[one, row].sum(1, keepdim=True) / keys).expand(output.shape)
            made.append(output)
    return torch.stack(made).view(q.shape) if made else q * 1


def _fold_multiplicative_update(
    x: Tensor, direction: str, mask: Tensor | None, norm_in_weight: Tensor | None, norm_in_bias: Tensor | None,
    p_in_weight: Tensor, p_in_bias: Tensor | None, g_in_weight: Tensor, g_in_bias: Tensor | None,
    norm_out_weight: Tensor | None, norm_out_bias: Tensor | None, p_out_weight: Tensor, p_out_bias: Tensor | None,
    g_out_weight: Tensor, g_out_bias: Tensor | None, eps: float,
) -> Tensor:  # fmt: skip
    return _triangle_multiply(
        x, direction, None if mask is None else mask.expand(x.shape[:-1]) != 0, norm_in_weight, norm_in_bias,
        p_in_weight, g_in_weight, norm_out_weight, norm_out_bias, p_out_weight, g_out_weight, p_in_bias, g_in_bias,
        p_out_bias, g_out_bias, eps,
    )  # fmt: skip


def _fold_pair_bias(
    single_repr: Tensor, pair_repr: Tensor, mask: Tensor | None, num_heads: int, w_ln_a: Tensor,
    b_ln_a: Tensor | None, w_proj_q: Tensor, b_proj_q: Tensor | None, w_proj_k: Tensor, w_proj_v: Tensor,
    w_proj_g: Tensor, w_proj_o: Tensor, w_proj_z: Tensor, b_proj_o: Tensor | None, b_proj_z: Tensor | None,
    w_ln_z: Tensor, b_ln_z: Tensor | None, eps: float, norm_kind: str,
) -> Tensor:  # fmt: skip
    def norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return layer_norm(x, weight, bias, eps) if norm_kind == "layer_norm" else rms_norm(x, weight, eps)

    a = norm(single_repr, w_ln_a, b_ln_a)
    neighbours = single_repr.shape[0] // max(pair_repr.shape[0], 1)
    biases = linear(norm(pair_repr, w_ln_z, b_ln_z), w_proj_z, b_proj_z).movedim(-1, 1)
    heads = [torch.unflatten(linear(a, weight, bias), -1, (num_heads, -1)).transpose(1, 2)
             for weight, bias in ((w_proj_q, b_proj_q), (w_proj_k, None), (w_proj_v, None))]  # fmt: skip
    biases = biases.repeat_interleave(neighbours, 0)
    if mask is not None:
        mask = mask.repeat_interleave(neighbours, 0) if len(mask) != len(single_repr) else mask
        mask = mask[:, None, None] != 0
    made = _attention(heads[0], heads[1], heads[2], bias=biases, mask=mask).transpose(1, 2).flatten(-2)
    return linear(sigmoid(linear(a, w_proj_g)) * made, w_proj_o, b_proj_o)


REFERENCES: dict[str, Callable[..., Any]] = {
    "attention": _attention,
    "attention_varlen": _attention_varlen,
    "triangle_attention": _triangle_attention,
    "msa_row_attention": _row_attention,
    "msa_column_attention": _column_attention,
    "attention_update": _attention_update,
    "triangle_multiply": _triangle_multiply,
    "outer_product_mean": _outer_product_mean,
    "fold.triangle_attention": _fold_triangle_attention,
    "fold.triangle_multiplicative_update": _fold_multiplicative_update,
    "fold.attention_pair_bias": _fold_pair_bias,
}
