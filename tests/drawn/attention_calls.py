"""Drawn arguments of the attention family and of the functions for protein models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from drawn.values import DTYPES, NAN, Draw
from tilesmith.spec import Inputs

LENGTHS = (0, 1, 2, 3, 5, 9)
SCALES = (None, 0.4, 1.0)


def _heads(draw: Draw) -> tuple[int, int, int]:
    """Return the number of heads, of key heads, and the head size."""
    key_heads, group = draw.one_of((1, 2)), draw.one_of((1, 2))
    return key_heads * group, key_heads, draw.one_of((1, 4, 5, 8))


def _hidden_pairs(draw: Draw) -> Inputs:
    """Return `causal` and `window`.

    A key that some queries see and others do not is in one product with both: its NaN reaches all of them.
    """
    causal, window = draw.maybe(), draw.one_of((None, None, (2, 0), (-1, 1), (1, -1), (0, 0)))
    draw.has_special &= not causal and window is None
    return {"causal": causal, "window": window}


def _attention(draw: Draw) -> Inputs:
    batch, queries, keys = draw.one_of((0, 1, 2)), draw.one_of(LENGTHS), draw.one_of(LENGTHS)
    heads, key_heads, head = _heads(draw)
    hidden = _hidden_pairs(draw)
    mask = _attention_mask(draw, batch, heads, queries, keys)
    draw.has_special &= mask is None or mask.ndim == 2
    return {
        "q": draw.tensor(batch, heads, queries, head, special=NAN),
        "k": draw.tensor(batch, key_heads, keys, head, special=NAN),
        "v": draw.tensor(batch, key_heads, keys, head), "mask": mask,
        "bias": _attention_bias(draw, batch, heads, queries, keys), "scale": draw.one_of(SCALES),
        "softcap": draw.one_of((0.0, 0.0, 3.0)), **hidden,
    }  # fmt: skip


def _attention_mask(draw: Draw, batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    kind = draw.one_of((None, None, "keys", "all", "positions", "added"))
    if kind == "keys":
        return draw.mask(batch, keys)
    if kind == "positions":
        return draw.mask(1, 1, queries, keys)
    if kind == "all":
        return draw.mask(batch, draw.one_of((1, heads)), draw.one_of((1, queries)), keys)
    return draw.parameter(batch, 1, queries, keys) if kind == "added" else None


def _attention_bias(draw: Draw, batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    if draw.maybe():
        return None
    shape = (draw.one_of((1, batch)), draw.one_of((1, heads)), draw.one_of((1, queries)), keys)
    return draw.tensor(*shape[draw.one_of((0, 1, 2)) :], dtype=draw.one_of((draw.dtype, draw.dtype, torch.float32)))


def _starts(draw: Draw, sequences: int) -> Tensor:
    lengths = [draw.one_of((0, 1, 2, 4, 7)) for _ in range(sequences)]
    return torch.tensor([0, *accumulate(lengths)], dtype=draw.one_of((torch.int32, torch.int64)))


def _attention_varlen(draw: Draw) -> Inputs:
    sequences, hidden = draw.one_of((1, 2, 3, 4)), _hidden_pairs(draw)
    heads, key_heads, head = _heads(draw)
    starts = _starts(draw, sequences)
    key_starts = _starts(draw, sequences).to(starts.dtype) if draw.one_of((0, 0, 1)) else None
    rows = int(starts[-1])
    keys = rows if key_starts is None else int(key_starts[-1])
    return {
        "q": draw.tensor(rows, heads, head, special=NAN), "k": draw.tensor(keys, key_heads, head, special=NAN),
        "v": draw.tensor(keys, key_heads, head), "cu_seqlens": starts, "cu_seqlens_k": key_starts,
        "scale": draw.one_of(SCALES), "softcap": draw.one_of((0.0, 0.0, 3.0)), **hidden,
    }  # fmt: skip


def _grid(draw: Draw, square: bool = False) -> tuple[Inputs, tuple[int, ...]]:
    """Return q, k, v, mask, gate and scale over a grid, and the sizes of the grid and its heads."""
    batch, rows, columns = draw.one_of((0, 1, 2)), draw.one_of((0, 1, 2, 4)), draw.one_of((0, 1, 3, 5))
    columns = rows if square else columns
    shape = (batch, rows, columns, draw.one_of((1, 2)), draw.one_of((1, 4, 6)))
    inputs = {name: draw.tensor(*shape, special=NAN) for name in ("q", "k", "v")}
    mask = draw.mask(*shape[:3]) if draw.maybe() else None
    gate = draw.tensor(*shape) if draw.maybe() else None
    return {**inputs, "mask": mask, "gate": gate, "scale": draw.one_of(SCALES)}, shape


def _msa_row_attention(draw: Draw) -> Inputs:
    inputs, (batch, _, columns, heads, _) = _grid(draw)
    return {**inputs, "bias": draw.tensor(batch, heads, columns, columns) if draw.maybe() else None}


def _msa_column_attention(draw: Draw) -> Inputs:
    return _grid(draw)[0]


def _triangle_attention(draw: Draw) -> Inputs:
    inputs, (batch, rows, _, heads, _) = _grid(draw, square=True)
    bias = draw.tensor(batch, heads, rows, rows) if draw.maybe() else None
    return {**inputs, "bias": bias, "starting": draw.maybe()}


def _attention_update(draw: Draw) -> Inputs:
    draw.ordinary()
    batch, rows, columns = draw.one_of((0, 1, 2)), draw.one_of((1, 2, 3)), draw.one_of((1, 2, 4))
    heads, head, channels = draw.one_of((1, 2)), draw.one_of((2, 4)), draw.one_of((3, 8))
    along_columns, kind = draw.maybe(), draw.one_of((None, "bias", "edge"))
    rows = columns if kind == "edge" else rows
    length, width = columns if along_columns else rows, heads * head
    return {
        "x": draw.tensor(batch, rows, columns, channels), "norm_weight": draw.parameter(channels),
        "norm_bias": draw.parameter(channels), "query_key_value_weight": draw.parameter(3 * width, channels),
        "gate_weight": draw.parameter(width, channels), "gate_bias": draw.parameter(width),
        "output_weight": draw.parameter(channels, width), "output_bias": draw.parameter(channels), "heads": heads,
        "along_columns": along_columns, "edge_weight": draw.parameter(heads, channels) if kind == "edge" else None,
        "bias": draw.parameter(batch, heads, length, length) if kind == "bias" else None,
        "mask": draw.mask(batch, rows, columns) if draw.maybe() else None, "eps": 1e-5, "residual": draw.maybe(),
    }  # fmt: skip


def _triangle_multiply(draw: Draw) -> Inputs:
    draw.ordinary()
    batch, length, channels, hidden = (draw.one_of(sizes) for sizes in ((0, 1, 2), (0, 1, 2, 4), (4, 7), (4, 6)))
    rows = {"projection": 2 * hidden, "gate": 2 * hidden, "output": channels, "output_gate": channels}
    return {
        "z": draw.tensor(batch, length, length, channels), "direction": draw.one_of(("outgoing", "incoming")),
        "mask": draw.mask(batch, length, length) if draw.maybe() else None,
        "norm_weight": draw.parameter(channels), "norm_bias": draw.parameter(channels),
        "output_norm_weight": draw.parameter(hidden), "output_norm_bias": draw.parameter(hidden),
        **{f"{name}_weight": draw.parameter(its, hidden if name == "output" else channels)
           for name, its in rows.items()},
        **{f"{name}_bias": draw.parameter(its) if draw.maybe() else None for name, its in rows.items()},
        "eps": 1e-3, "chunk": draw.one_of((None, None, 1, 3)), "residual": draw.maybe(),
    }  # fmt: skip


def _outer_product_mean(draw: Draw) -> Inputs:
    if draw.route == "torch":  # PyTorch's sum is in the tensors' dtype, and may leave its range before the division
        draw.ordinary()
    batch, sequences, residues = (draw.one_of((0, 1, 2, 3)) for _ in range(3))
    channels, outputs = draw.one_of((1, 3)), draw.one_of((1, 4))
    has_weight = draw.maybe()
    shape = batch, sequences, residues, channels
    return {
        "a": draw.tensor(*shape), "b": draw.tensor(*shape), "mask": draw.mask(*shape[:3]) if draw.maybe() else None,
        "weight": draw.parameter(outputs, channels * channels) if has_weight else None,
        "bias": draw.parameter(outputs) if has_weight and draw.maybe() else None,
        "chunk": draw.one_of((None, None, 1, 2)), "eps": draw.one_of((0.1, 1e-3, 0.0)),
    }  # fmt: skip


def _fold_triangle_attention(draw: Draw) -> Inputs:
    batch, rows, queries, keys = (draw.one_of(sizes) for sizes in ((0, 1, 2), (1, 2, 3), (1, 3, 5), (1, 3, 4)))
    keys = queries if draw.maybe() else keys
    heads, head = draw.one_of((1, 2)), draw.one_of((4, 5))
    kind = draw.one_of((None, "mask", "lengths"))
    mask = draw.mask(batch, rows, 1, 1, keys) if kind == "mask" else None
    lengths = torch.randint(keys + 1, (batch, rows, 1, 1, 1), generator=draw.random, dtype=torch.int32)
    bias = (batch, draw.one_of((1, 1, rows)), heads, queries, keys)
    return {
        "q": draw.tensor(batch, rows, heads, queries, head, special=NAN),
        "k": draw.tensor(batch, rows, heads, keys, head, special=NAN),
        "v": draw.tensor(batch, rows, heads, keys, head),
        "bias": draw.tensor(*bias, dtype=draw.one_of((draw.dtype, torch.float32))) if draw.maybe() else None,
        "mask": mask if mask is None or draw.maybe() else mask.to(draw.one_of(DTYPES)),
        "kv_lengths": lengths if kind == "lengths" else None,
        "scale": draw.one_of(SCALES),
    }  # fmt: skip


def _fold_multiplicative_update(draw: Draw) -> Inputs:
    draw.ordinary()
    batch, length, channels, hidden = (draw.one_of(sizes) for sizes in ((0, 1, 2), (1, 2, 4), (4, 7), (4, 6)))
    rows = {"p_in": 2 * hidden, "g_in": 2 * hidden, "p_out": channels, "g_out": channels}
    return {
        "x": draw.tensor(batch, length, length, channels), "direction": draw.one_of(("outgoing", "incoming")),
        "mask": draw.mask(batch, length, length).to(draw.one_of(DTYPES)) if draw.maybe() else None,
        **{f"{norm}_{part}": draw.parameter(its) if draw.maybe() else None
           for norm, its in (("norm_in", channels), ("norm_out", hidden)) for part in ("weight", "bias")},
        **{f"{name}_weight": draw.parameter(its, hidden if name == "p_out" else channels)
           for name, its in rows.items()},
        **{f"{name}_bias": draw.parameter(its) if draw.maybe() else None for name, its in rows.items()},
        "eps": 1e-3,
    }  # fmt: skip


def _fold_pair_bias(draw: Draw) -> Inputs:
    draw.ordinary()
    batch, neighbours, length = draw.one_of((1, 2)), draw.one_of((1, 2)), draw.one_of((1, 2, 4))
    channels, pair_channels, heads, head = (draw.one_of(sizes) for sizes in ((3, 8), (2, 5), (1, 2), (2, 4)))
    width, rms = heads * head, draw.maybe()

    def optional(*shape: int, unless: bool = False) -> Tensor | None:
        return draw.parameter(*shape) if draw.maybe() and not unless else None

    mask = draw.mask(batch * draw.one_of((1, neighbours)), length).contiguous()
    mask[:, 0] = True  # a row without keys depends on the rounding of `inf`
    return {
        "single_repr": draw.tensor(batch * neighbours, length, channels),
        "pair_repr": draw.tensor(batch, length, length, pair_channels),
        "mask": mask.to(draw.dtype) if draw.maybe() else None, "num_heads": heads,
        "w_ln_a": draw.parameter(channels), "b_ln_a": optional(channels, unless=rms),
        "b_proj_q": optional(width), "w_proj_o": draw.parameter(channels, width),
        **{f"w_proj_{name}": draw.parameter(width, channels) for name in "qkvg"},
        "w_proj_z": draw.parameter(heads, pair_channels), "b_proj_o": optional(channels), "b_proj_z": optional(heads),
        "w_ln_z": draw.parameter(pair_channels), "b_ln_z": optional(pair_channels, unless=rms), "eps": 1e-4,
        "norm_kind": "rms_norm" if rms else "layer_norm",
    }  # fmt: skip


CALLS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "attention": _attention,
    "attention_varlen": _attention_varlen,
    "triangle_attention": _triangle_attention,
    "msa_row_attention": _msa_row_attention,
    "msa_column_attention": _msa_column_attention,
    "attention_update": _attention_update,
    "triangle_multiply": _triangle_multiply,
    "outer_product_mean": _outer_product_mean,
    "fold.triangle_attention": _fold_triangle_attention,
    "fold.triangle_multiplicative_update": _fold_multiplicative_update,
    "fold.attention_pair_bias": _fold_pair_bias,
}
