"""Sums of dq in memory for `backward.py`: each warpgroup has a tile of 64 rows, added up by several programs.

The tile has 64 columns; of a head in two tiles, the second warpgroup has the REST columns. Only this kernel reads the
sums, so they lie as threads hold them. A thread has two columns of a row and the same two columns eight rows below:
four elements that are neighbours in the sum. TMA adds rows of 32 of them, 128 for a tile of 64 columns.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

DQ_ROWS, DQ_COLUMNS = gl.constexpr(64), gl.constexpr(64)  # of a warpgroup's tile; the second may have REST columns
SUM_COLUMNS = gl.constexpr(32)  # of a row of the sum


@gluon.constexpr_function
def sum_rows(columns):
    """Return the rows that a tile of so many columns has in the sum."""
    return DQ_ROWS.value * columns // SUM_COLUMNS.value


@gluon.constexpr_function
def fours_of_threads(columns):
    """Return which groups of four each thread has, in the sum of a tile of so many columns."""
    places = DQ_ROWS.value * columns // 4
    in_registers = [[32 << bit] for bit in range((columns // 8).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        in_registers, [[1], [2], [4], [8], [16]], [[places // 4], [places // 2]], [], [places]
    )


@gluon.jit
def in_order_of_sum(dq):
    """Return dq as it lies in the sum: [rows of the sum, SUM_COLUMNS]. No element changes its thread."""
    COLUMNS: gl.constexpr = dq.shape[1]
    # [warp, row of eight, row, column of eight, column of two, column]: rows of eight move next to the last dimension.
    fours = dq.reshape([4, 2, 8, COLUMNS // 8, 4, 2]).permute([0, 3, 2, 4, 1, 5])
    return fours.reshape([sum_rows(COLUMNS), SUM_COLUMNS])


@gluon.jit
def sum_so_far(sum_ptr, COLUMNS: gl.constexpr, DQ: gl.constexpr):
    """Load the sum, [DQ_ROWS, COLUMNS], in the layout of dq. From the L2 cache: the L1 cache may hold older sums."""
    places = sum_ptr + gl.arange(0, DQ_ROWS * COLUMNS // 4, fours_of_threads(COLUMNS)) * 4
    a, b, c, d = gl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.v4.f32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l,~{memory}",
        [gl.cast(places, gl.int64, bitcast=True)],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=False, pack=1,
    )  # fmt: skip
    # [warp, column of eight, row, column of two, row of eight, column]
    fours = gl.join(gl.join(a, c), gl.join(b, d)).reshape([4, COLUMNS // 8, 8, 4, 2, 2])
    dq = fours.permute([0, 4, 2, 1, 3, 5]).reshape([DQ_ROWS, COLUMNS])
    return gl.convert_layout(dq, DQ, assert_trivial=True)
