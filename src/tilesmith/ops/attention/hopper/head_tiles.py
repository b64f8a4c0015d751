"""Heads as one tile or two in `forward.py` and `backward.py`: in shared memory, in products, and by TMA.

A tile must have a power of two of columns. A head is one tile of FIRST columns, or two: FIRST, and REST more. So a
head of 96 is computed as 64 + 32, not as 128. A product over the columns of a head is then the sum of two, and a
product with the columns of a head is a pair. Each kernel has a `Form` of its own; both have FIRST and REST.
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
from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.runtime.plan import Operand
from tilesmith.toolchain.gluon import fetch, put


def parts_of_head(head_size: int) -> tuple[int, int]:
    """Return the columns of the two tiles of a head. The second is zero where a single tile is as fast.

    Heads of 48 in tiles of 32 + 16 are no faster than in one of 64: forward of b4 h16 s4096 causal 313 µs and 302. In
    tiles of 64 + 16 instead of 128 heads of 72 take 362 µs (434) forward, b6 h20 s2048 full, and 539 (623) backward, b4
    h16 s2048 full.
    """
    if head_size > 192:
        return 256, 0
    first = 128 if head_size > 96 else 64 if head_size > 32 else 32
    return first, next(columns for columns in (0, 16, 32, 64) if head_size - first <= columns)


def described_heads(parts: tuple[int, int], rows: int, **tensors: Operand) -> dict[str, object]:
    """Return the descriptors of both tiles of each tensor, as a kernel's arguments: `q_first`, `q_rest`, …"""
    first, rest = parts
    found: dict[str, object] = {}
    for name, tensor in tensors.items():
        found[f"{name}_first"] = tensor.gluon_descriptor((1, 1, rows, first))
        found[f"{name}_rest"] = tensor.gluon_descriptor((1, 1, rows, rest or first))
    return found


class Form(NamedTuple):
    """The compile-time constants of the forward kernel."""

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


@gluon.constexpr_function
def products_layout(columns):
    """Return the layout of a warpgroup's products, with so many columns."""
    return gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS.value, 1], [16, columns, 16])


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
    mbarrier.expect(ready, HEIGHT * (FORM.FIRST + FORM.REST) * 2)
    start_fetching(described, sequence, head, start, ready, tiles, place, FORM)


@gluon.jit
def start_fetching(described, sequence, head, start, ready, tiles, place, FORM: gl.constexpr):
    """Start loading rows of a head. The caller tells `ready` how many bytes to expect."""
    FIRST: gl.constexpr = FORM.FIRST
    fetch(described.first, [sequence, head, start, 0], ready, tiles.first.index(place))
    if FORM.REST:
        fetch(described.rest, [sequence, head, start, FIRST], ready, tiles.rest.index(place))


@gluon.jit
def rows_of_head(tiles, place, HEIGHT: gl.constexpr, FORM: gl.constexpr):
    """Return the tiles at a place in shared memory: [HEIGHT, FIRST] and [HEIGHT, REST]."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST
    first = tiles.first.index(place).reshape([HEIGHT, FIRST])
    rest = tiles.rest.index(place).reshape([HEIGHT, REST]) if REST else first
    return HeadTiles(first, rest)


@gluon.jit
def start_product(a, b, products, ADDS: gl.constexpr, FORM: gl.constexpr):
    """Start a · bᵀ over the columns of both tiles. ADDS: add to `products`."""
    products = warpgroup_mma(a.first, b.first.permute([1, 0]), products, use_acc=ADDS, is_async=True)
    if FORM.REST:
        products = warpgroup_mma(a.rest, b.rest.permute([1, 0]), products, is_async=True)
    return products


@gluon.jit
def start_scores(q, place, k, i, SCORES: gl.constexpr, FORM: gl.constexpr):
    """Start the products of a tile of queries with the i-th block of keys: [ROWS, BLOCK_KEYS]."""
    BLOCK_KEYS: gl.constexpr = FORM.BLOCK_KEYS
    scores = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, SCORES)
    queries, keys = rows_of_head(q, place, ROWS, FORM), rows_of_head(k, i % FORM.STAGES, BLOCK_KEYS, FORM)
    return start_product(queries, keys, scores, False, FORM)


@gluon.jit
def start_sum(weights, head, first, rest, FORM: gl.constexpr):
    """Start adding weights · head to `first` and `rest`. The weights are in registers, the head in shared memory."""
    operand = gl.convert_layout(weights, gl.DotOperandLayout(0, products_layout(FORM.FIRST), 2))
    first = warpgroup_mma(operand, head.first, first, is_async=True)  # [ROWS, FIRST]
    if FORM.REST:
        operand = gl.convert_layout(weights, gl.DotOperandLayout(0, products_layout(FORM.REST), 2))
        rest = warpgroup_mma(operand, head.rest, rest, is_async=True)  # [ROWS, REST]
    return first, rest


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
    round_into(buffers, place, output, rest, FORM)
    fence_async_shared()
    put_head(described, sequence, head, start, buffers, place, FORM)
    tma.store_wait(0)


@gluon.jit
def round_into(tiles, place, first, rest, FORM: gl.constexpr):
    """Round ROWS rows of both tiles and store them to shared memory."""
    FIRST: gl.constexpr = FORM.FIRST
    REST: gl.constexpr = FORM.REST
    tiles.first.index(place).reshape([ROWS, FIRST]).store(first.to(tiles.first.dtype))
    if REST:
        tiles.rest.index(place).reshape([ROWS, REST]).store(rest.to(tiles.first.dtype))


@gluon.jit
def put_head(described, sequence, head, start, tiles, place, FORM: gl.constexpr):
    """Start storing rows of a head from `start` on, by TMA."""
    FIRST: gl.constexpr = FORM.FIRST
    put(described.first, [sequence, head, start, 0], tiles.first.index(place))
    if FORM.REST:
        put(described.rest, [sequence, head, start, FIRST], tiles.rest.index(place))
