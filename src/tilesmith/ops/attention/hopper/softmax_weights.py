"""The weights of `hopper_forward`: what a warpgroup makes of a tile of scores, 64 queries by a block of keys.

What the exponentials cost beside themselves is kept small: the sums of weights stay apart in the threads that made them
until the end, weights go from one step to the next packed by pairs, and no predicate outlives its element.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROWS = gl.constexpr(64)  # queries of a warpgroup: what its products have at least
ROUND_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $1, $2;")
ROUND_FP16 = gl.constexpr("cvt.rn.f16x2.f32 $0, $1, $2;")
HIDE = gl.constexpr("{.reg .pred seen; setp.le.s32 seen, $2, $3; selp.f32 $0, $1, 0fFF800000, seen;}")
LANES = gl.constexpr(4)  # threads that have a row of scores between them


@gluon.jit
def spread(tile, BLOCK_KEYS: gl.constexpr):
    """A tile of scores as threads have it: of each row LANES threads have a pair of every eight columns."""
    return tile.reshape([ROWS, BLOCK_KEYS // (2 * LANES), LANES, 2])


@gluon.jit
def added_apart(weights):
    """The sum of those weights of a row that one thread has."""
    return gl.sum(gl.sum(weights, 1), 2)


@gluon.jit
def largest_of(products, SCORES: gl.constexpr):
    """In each thread first, along several chains: one alone would take a row's length of an operation's latency."""
    return gl.convert_layout(gl.max(gl.max(gl.max(products, 1), 2), 1), gl.SliceLayout(1, SCORES))


@gluon.jit
def hidden(products, last_seen, BLOCK_KEYS: gl.constexpr):
    """The products with −∞ for keys beyond the last that a row sees, counted from the block's first.

    What a thread compares with is made of what is known when this is compiled and one number for each of its rows:
    numbers of columns would fill the registers, and predicates of a whole tile be packed into words and unpacked.
    """
    SPREAD: gl.constexpr = products.type.layout
    block = gl.arange(0, BLOCK_KEYS // (2 * LANES), gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, SPREAD))))
    lane = gl.arange(0, LANES, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, SPREAD))))
    side = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, SPREAD))))
    last_seen = gl.convert_layout(last_seen, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, SPREAD))))
    limit = last_seen[:, None, None, None] - 2 * lane[None, None, :, None]
    column = block[None, :, None, None] * (2 * LANES) + side[None, None, None, :]
    return gl.inline_asm_elementwise(
        HIDE, "=f,f,r,r", [products, column, limit], dtype=gl.float32, is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def weighed(
    products, largest, total, factor, key, last_seen, SCORES: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    CHECKED: gl.constexpr,
):  # fmt: skip
    """A block's weights, what to shrink the sums so far by, and the new largest score and sums of weights."""
    products = spread(products, BLOCK_KEYS)
    if CHECKED:
        products = hidden(products, last_seen - key, BLOCK_KEYS)
    new_largest = gl.maximum(largest, largest_of(products, SCORES) * factor)
    subtracted = new_largest
    if CHECKED:  # −∞ − −∞ is no number: a row may see nothing yet
        subtracted = gl.where(new_largest == float("-inf"), 0.0, new_largest)
    BY_ROW: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, products.type.layout)))
    weights = gl.exp2(products * factor - gl.convert_layout(subtracted, BY_ROW)[:, None, None, None])
    shrink = gl.exp2(largest - subtracted)
    shrink_apart = gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))
    return weights, shrink, new_largest, total * shrink_apart[:, None] + added_apart(weights)


@gluon.jit
def packed(weights, dtype: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    """Neighbours rounded into one word: elements that outlive a step would each be cut out of it and put back."""
    even, odd = gl.split(weights.reshape([ROWS, BLOCK_KEYS // 2, 2]))
    ROUND: gl.constexpr = ROUND_BF16 if dtype == gl.bfloat16 else ROUND_FP16
    return gl.inline_asm_elementwise(ROUND, "=r,r,r", [odd, even], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpacked(weights, dtype: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    even = weights.to(gl.int16).to(dtype, bitcast=True)
    odd = (weights >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.join(even, odd).reshape([ROWS, BLOCK_KEYS])
