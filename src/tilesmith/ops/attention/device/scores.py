"""Scores: a tile of products q·kᵀ becomes the exponents of softmax, and in the backward its weights."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.attention.device.tiles import head_start, is_seen
from tilesmith.ops.device.activations import tanh
from tilesmith.ops.device.constants import LOG2_E


class ScoreTile(NamedTuple):
    """The position of a tile of scores: its rows are queries, its columns keys.

    `rows` count queries from `query` on, `columns` count keys from `key` on. One is a column and the other a row, so
    that they broadcast to the tile. `place` is the sequence's, as `place_of` returns it.
    """

    place: Any
    head: Any
    query: Any
    key: Any
    rows: Any
    columns: Any


class Scoring(NamedTuple):
    """How the products of one sequence become scores: its lengths, its window, and what is done to each product."""

    n_queries: Any
    n_keys: Any
    left: Any
    right: Any
    scale: Any
    softcap: Any
    bias_ptr: Any
    bias_strides: Any


@triton.jit
def scored(products, tile, scoring, BIAS_DESCRIBED: tl.constexpr, EXACT: tl.constexpr):
    """Return the exponents of softmax as two factors, and the slope of the soft cap.

    softmax takes 2^(scores · factor). The factor fuses with the subtraction of the maximum into one instruction. All
    sequences of a member of the batch share its bias.
    """
    if scoring.softcap is not None:
        fraction = tanh(products * (scoring.scale / scoring.softcap), EXACT)
        scores = fraction
        slope = 1 - fraction * fraction
        scale = tl.full([], scoring.softcap, products.dtype)
    else:
        scores = products  # [rows, columns] of the tile
        slope = 1.0
        # Not the number alone: in double precision it is a constant, which becomes float32 when returned or assigned.
        scale = tl.full([], scoring.scale, products.dtype)
    factor = scale * LOG2_E
    if scoring.bias_ptr is not None:
        strides = scoring.bias_strides
        if BIAS_DESCRIBED:
            bias = described_bias(scoring.bias_ptr, strides, tile)  # as products
        else:
            start = head_start(scoring.bias_ptr, strides, (tile.place[0],), tile.head, tile.query)
            start += tl.cast(tile.key, tl.int64) * strides[3]
            exists = (tile.query + tile.rows < scoring.n_queries) & (tile.key + tile.columns < scoring.n_keys)
            bias = tl.load(start + (tile.rows * strides[2] + tile.columns * strides[3]), mask=exists, other=0.0)
        scores = scores * scale + bias.to(products.dtype)
        factor = tl.full([], LOG2_E, products.dtype)
    return scores, factor, slope


@triton.jit
def weighed(
    products, tile, scoring, lse, attended, BIAS_DESCRIBED: tl.constexpr, EXACT: tl.constexpr, CHECKED: tl.constexpr
):  # fmt: skip
    """Return a tile of softmax's weights, computed again from lse, and the slope of the soft cap.

    `lse` broadcasts as `tile.rows` does, `attended` as `tile.columns` does. CHECKED where not every query sees every
    key.
    """
    scores, factor, slope = scored(products, tile, scoring, BIAS_DESCRIBED, EXACT)
    weights = tl.exp2(scores * factor - lse)
    if CHECKED:
        queries, keys = tile.query + tile.rows, tile.key + tile.columns
        seen = is_seen(queries, keys, scoring.n_queries, scoring.n_keys, scoring.left, scoring.right)
        weights = tl.where(seen, weights, 0.0)
    if attended is not None:
        weights = tl.where(attended, weights, 0.0)
    return weights, slope


@triton.jit
def described_bias(bias, bias_strides, tile):
    """Load a tile of a bias by TMA, with zeros past its edges; transposed where queries lie along columns.

    A stride of zero means that all sequences, or all heads, share one matrix. The descriptor then knows only one.
    """
    sequence = tl.where(bias_strides[0] == 0, 0, tile.place[0])
    head = tl.where(bias_strides[1] == 0, 0, tile.head)
    TRANSPOSED: tl.constexpr = tile.rows.shape[0] == 1
    QUERIES: tl.constexpr = tile.rows.shape[1] if TRANSPOSED else tile.rows.shape[0]
    KEYS: tl.constexpr = tile.columns.shape[0] if TRANSPOSED else tile.columns.shape[1]
    values = bias.load([sequence, head, tile.query, tile.key]).reshape(QUERIES, KEYS)
    return tl.trans(values) if TRANSPOSED else values
