"""Heads as one tile or two in `forward.py`: in shared memory, in products, and by TMA.

A tile must have a power of two of columns. A head is one tile of FIRST columns, or two: FIRST, and REST more. So a
head of 96 is computed as 64 + 32, not as 128. A product over the columns of a head is then the sum of two, and a
product with the columns of a head is a pair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.attention.hopper.softmax_weights import ROWS
from tilesmith.toolchain.gluon import fetch, put


class Form(NamedTuple):
    """The compile-time constants of the kernel."""

    FIRST: int  # columns of a head's first tile
    REST: int  # and of its second, or zero
    PLACES: int  # buffers for a tile of queries
    GROUPS: int  # consumer warpgroups
    BLOCK_KEYS: int
    STAGES: int  # blocks of keys in the ring
    PERSISTENT: bool


@gluon.constexpr_function
def form(first, rest, places, groups, block_keys, stages, persistent):
    return Form(first, rest, places, groups, block_keys, stages, persistent)


class HeadTiles(NamedTuple):
    """The tiles of a tensor's heads: in shared memory, or as descriptors. `rest` is unused where REST is zero."""

    first: Any
    rest: Any


@gluon.jit
def allocate_heads(first, rest, COUNT: gl.constexpr, HEIGHT: gl.constexpr, FORM: gl.constexpr):
    """Allocate COUNT tiles of HEIGHT rows of heads in shared memory, as their descriptors lay them out."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST
    first_tiles = gl.allocate_shared_memory(first.dtype, [COUNT, 1, 1, HEIGHT, FIRST], first.layout)
    if REST:
        rest_tiles = gl.allocate_shared_memory(rest.dtype, [COUNT, 1, 1, HEIGHT, REST], rest.layout)
    else:
        rest_tiles = first_tiles
    return HeadTiles(first_tiles, rest_tiles)


@gluon.jit
def fetch_head(
    described, sequence, head, start, ready, tiles, place, HEIGHT: gl.constexpr, FORM: gl.constexpr
):  # fmt: skip
    """Load HEIGHT rows of a head from `start` on. `ready` completes when they have come."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST
    mbarrier.expect(ready, HEIGHT * (FIRST + REST) * 2)
    fetch(described.first, [sequence, head, start, 0], ready, tiles.first.index(place))
    if REST:
        fetch(described.rest, [sequence, head, start, FIRST], ready, tiles.rest.index(place))


@gluon.jit
def start_scores(q, place, k, i, SCORES: gl.constexpr, FORM: gl.constexpr):
    """Start the products of a tile of queries with the i-th block of keys."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST
    BLOCK_KEYS: gl.constexpr = FORM.BLOCK_KEYS
    STAGES: gl.constexpr = FORM.STAGES
    scores = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, SCORES)
    slot = i % STAGES
    queries, keys = q.first.index(place), k.first.index(slot)  # in shared memory
    queries = queries.reshape([ROWS, FIRST])
    keys = keys.reshape([BLOCK_KEYS, FIRST]).permute([1, 0])
    scores = warpgroup_mma(queries, keys, scores, use_acc=False, is_async=True)  # [ROWS, BLOCK_KEYS]
    if REST:
        queries, keys = q.rest.index(place), k.rest.index(slot)
        queries = queries.reshape([ROWS, REST])
        keys = keys.reshape([BLOCK_KEYS, REST]).permute([1, 0])
        scores = warpgroup_mma(queries, keys, scores, is_async=True)
    return scores


@gluon.jit
def start_sum(weights, v, output, rest, i, FORM: gl.constexpr):
    """Start adding the values of the i-th block, times these weights, to both tiles of the output."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST
    BLOCK_KEYS: gl.constexpr = FORM.BLOCK_KEYS
    STAGES: gl.constexpr = FORM.STAGES
    slot = i % STAGES
    values = v.first.index(slot).reshape([BLOCK_KEYS, FIRST])  # in shared memory
    operand = gl.convert_layout(weights, gl.DotOperandLayout(0, output.type.layout, 2))  # [ROWS, BLOCK_KEYS]
    output = warpgroup_mma(operand, values, output, is_async=True)  # [ROWS, FIRST]
    if REST:
        values = v.rest.index(slot).reshape([BLOCK_KEYS, REST])
        operand = gl.convert_layout(weights, gl.DotOperandLayout(0, rest.type.layout, 2))
        rest = warpgroup_mma(operand, values, rest, is_async=True)  # [ROWS, REST]
    return output, rest


@gluon.jit
def finished(output, rest, FORM: gl.constexpr):
    """Return both tiles of the output once all products have ended."""
    if FORM.REST:
        output, rest = warpgroup_mma_wait(0, deps=[output, rest])
    else:
        output = warpgroup_mma_wait(0, deps=[output])
    return output, rest


@gluon.jit
def scaled(output, rest, factor, FORM: gl.constexpr):
    """Return both tiles of the output times a factor of each row."""
    output = output * gl.convert_layout(factor, gl.SliceLayout(1, output.type.layout))[:, None]
    if FORM.REST:
        rest = rest * gl.convert_layout(factor, gl.SliceLayout(1, rest.type.layout))[:, None]
    return output, rest


@gluon.jit
def divided(output, rest, divisor, FORM: gl.constexpr):
    """Return both tiles of the output over a divisor of each row. Triton 3.8 would spill a product with its inverse."""
    output = output / gl.convert_layout(divisor, gl.SliceLayout(1, output.type.layout))[:, None]
    if FORM.REST:
        rest = rest / gl.convert_layout(divisor, gl.SliceLayout(1, rest.type.layout))[:, None]
    return output, rest


@gluon.jit
def store_output(described, sequence, head, start, output, rest, buffers, place, FORM: gl.constexpr):
    """Store both tiles of the output by TMA, through the buffer of the queries, which are no longer needed."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST
    buffers.first.index(place).reshape([ROWS, FIRST]).store(output.to(buffers.first.dtype))
    if REST:
        buffers.rest.index(place).reshape([ROWS, REST]).store(rest.to(buffers.first.dtype))
    fence_async_shared()
    put(described.first, [sequence, head, start, 0], buffers.first.index(place))
    if REST:
        put(described.rest, [sequence, head, start, FIRST], buffers.rest.index(place))
    tma.store_wait(0)
