"""Sums of dq in memory for `backward.py`: each warpgroup has a tile of 64 by 64, added up by several programs.

Only this kernel reads the sums, so they lie as threads hold them. A thread has two columns of a row and the same two
columns eight rows below: four elements that are neighbours in the sum. TMA adds 128 rows of 32 of them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

DQ_ROWS, DQ_COLUMNS = gl.constexpr(64), gl.constexpr(64)  # of a warpgroup's tile
SUM_ROWS, SUM_COLUMNS = gl.constexpr(128), gl.constexpr(32)  # the same elements as they lie in the sum
PLACES = gl.constexpr(64 * 64 // 4)  # groups of four elements

# Which groups of four each thread has.
FOURS = gl.constexpr(
    gl.DistributedLinearLayout([[32], [64], [128]], [[1], [2], [4], [8], [16]], [[256], [512]], [], [PLACES.value])
)


@gluon.jit
def in_order_of_sum(dq):
    """Return dq as it lies in the sum: [SUM_ROWS, SUM_COLUMNS]. No element changes its thread."""
    # [warp, row of eight, row, column of eight, column of two, column]: rows of eight move next to the last dimension.
    fours = dq.reshape([4, 2, 8, DQ_COLUMNS // 8, 4, 2]).permute([0, 3, 2, 4, 1, 5])
    return fours.reshape([SUM_ROWS, SUM_COLUMNS])


@gluon.jit
def sum_so_far(sum_ptr, DQ: gl.constexpr):
    """Load the sum, [DQ_ROWS, DQ_COLUMNS], in the layout of dq. From the L2 cache: the L1 cache may hold older sums."""
    places = sum_ptr + gl.arange(0, PLACES, FOURS) * 4
    a, b, c, d = gl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.v4.f32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l,~{memory}",
        [gl.cast(places, gl.int64, bitcast=True)],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=False, pack=1,
    )  # fmt: skip
    # [warp, column of eight, row, column of two, row of eight, column]
    fours = gl.join(gl.join(a, c), gl.join(b, d)).reshape([4, DQ_COLUMNS // 8, 8, 4, 2, 2])
    dq = fours.permute([0, 4, 2, 1, 3, 5]).reshape([DQ_ROWS, DQ_COLUMNS])
    return gl.convert_layout(dq, DQ, assert_trivial=True)
