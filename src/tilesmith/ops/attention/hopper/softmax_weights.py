"""From scores to weights in `forward.py`: a warpgroup's tile of 64 queries by a block of keys.

Little is done besides the exponentials. Each thread keeps its own sums of weights until the end. Weights go from one
step to the next packed in pairs. No predicate outlives its element.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROWS = gl.constexpr(64)  # queries of a warpgroup: the M of wgmma
ROUND_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $1, $2;")
ROUND_FP16 = gl.constexpr("cvt.rn.f16x2.f32 $0, $1, $2;")
HIDE = gl.constexpr("{.reg .pred seen; setp.le.s32 seen, $2, $3; selp.f32 $0, $1, 0fFF800000, seen;}")
LANES = gl.constexpr(4)  # threads that share a row of scores


@gluon.jit
def spread(tile, BLOCK_KEYS: gl.constexpr):
    """Reshape a tile of scores as threads hold it: each of LANES threads has a pair of every eight columns of a row."""
    return tile.reshape([ROWS, BLOCK_KEYS // (2 * LANES), LANES, 2])  # from [ROWS, BLOCK_KEYS]


@gluon.jit
def added_apart(weights):
    """Return the sum of the weights of a row that one thread holds."""
    return gl.sum(gl.sum(weights, 1), 2)  # [ROWS, LANES]


@gluon.jit
def largest_of(products, SCORES: gl.constexpr):
    """Return the largest product of each row. Each thread reduces several chains at once, to hide the latency."""
    return gl.convert_layout(gl.max(gl.max(gl.max(products, 1), 2), 1), gl.SliceLayout(1, SCORES))  # [ROWS]


@gluon.jit
def hidden(products, last_seen, BLOCK_KEYS: gl.constexpr):
    """Return the products with −∞ for keys past the last that a row sees, counted from the block's first.

    A thread compares constants with one number per row. Column numbers would fill the registers, and a tile of
    predicates would be packed into words and unpacked.
    """
    SPREAD: gl.constexpr = products.type.layout
    block = gl.arange(0, BLOCK_KEYS // (2 * LANES), gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, SPREAD))))
    lane = gl.arange(0, LANES, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, SPREAD))))
    side = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, SPREAD))))
    last_seen = gl.convert_layout(last_seen, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, SPREAD))))
    limit = last_seen[:, None, None, None] - 2 * lane[None, None, :, None]  # [ROWS, 1, LANES, 1]
    column = block[None, :, None, None] * (2 * LANES) + side[None, None, None, :]  # [1, BLOCK_KEYS / 8, 1, 2]
    return gl.inline_asm_elementwise(
        HIDE, "=f,f,r,r", [products, column, limit], dtype=gl.float32, is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def weighed(
    products, largest, total, factor, key, last_seen, SCORES: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    CHECKED: gl.constexpr,
):  # fmt: skip
    """Return a block's weights, the factor for earlier sums, and each row's new largest score and sums of weights."""
    products = spread(products, BLOCK_KEYS)  # [ROWS, BLOCK_KEYS / 8, LANES, 2]
    if CHECKED:
        products = hidden(products, last_seen - key, BLOCK_KEYS)
    new_largest = gl.maximum(largest, largest_of(products, SCORES) * factor)  # [ROWS]
    subtracted = new_largest
    if CHECKED:  # −∞ − −∞ is NaN
        subtracted = gl.where(new_largest == float("-inf"), 0.0, new_largest)
    BY_ROW: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, products.type.layout)))
    # [ROWS, BLOCK_KEYS / 8, LANES, 2]
    weights = gl.exp2(products * factor - gl.convert_layout(subtracted, BY_ROW)[:, None, None, None])
    shrink = gl.exp2(largest - subtracted)  # [ROWS]
    shrink_apart = gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))
    return weights, shrink, new_largest, total * shrink_apart[:, None] + added_apart(weights)  # the sum: [ROWS, LANES]


@gluon.jit
def packed(weights, dtype: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    """Round neighbours into one 32-bit word: weights that outlive a step unpacked would be extracted and inserted."""
    even, odd = gl.split(weights.reshape([ROWS, BLOCK_KEYS // 2, 2]))  # [ROWS, BLOCK_KEYS / 2] each, as the words
    ROUND: gl.constexpr = ROUND_BF16 if dtype == gl.bfloat16 else ROUND_FP16
    return gl.inline_asm_elementwise(ROUND, "=r,r,r", [odd, even], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpacked(weights, dtype: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    """Return the weights [ROWS, BLOCK_KEYS] from words of two."""
    even = weights.to(gl.int16).to(dtype, bitcast=True)
    odd = (weights >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.join(even, odd).reshape([ROWS, BLOCK_KEYS])
