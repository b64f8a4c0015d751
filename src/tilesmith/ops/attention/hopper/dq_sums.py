"""Sums of dq in memory for `backward.py`: 64 queries by COLUMNS columns, added up by several programs.

Only this kernel reads the sums, so they lie as threads hold them. A thread has two columns of a row and the same two
columns eight rows below: one access of 16 bytes. The accesses of a warp are neighbours.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def fours_layout(columns):
    """Return the layout that says which groups of four elements each thread has."""
    held = [[32 << bit] for bit in range((columns // 8).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        held, [[1], [2], [4], [8], [16]], [[4 * columns], [8 * columns]], [], [16 * columns]
    )


@gluon.jit
def addresses_of_fours(sum_ptr, COLUMNS: gl.constexpr):
    """Return the address of each group of four elements: [16 · COLUMNS]."""
    places = sum_ptr + gl.arange(0, 16 * COLUMNS, fours_layout(COLUMNS)) * 4
    return gl.cast(places, gl.int64, bitcast=True)


@gluon.jit
def add_to_sum(sum_ptr, dq, adds_first, COLUMNS: gl.constexpr):
    """Add dq to the sum in memory, or store dq if this program adds first. The L2 cache adds, so no thread waits.

    Other programs access the same sum, but not at the same time: `backward.py` says who waits for whom.
    """
    FOURS: gl.constexpr = fours_layout(COLUMNS)
    # [warp, row of eight, row, column of eight, column of two, column]: rows of eight move next to the last dimension.
    fours = dq.reshape([4, 2, 8, COLUMNS // 8, 4, 2]).permute([0, 3, 2, 4, 1, 5]).reshape([16 * COLUMNS, 2, 2])
    evens, odds = gl.split(fours)  # [16 · COLUMNS, 2] each
    a, c = gl.split(evens)  # [16 · COLUMNS] each, as b and d
    b, d = gl.split(odds)
    a = gl.convert_layout(a, FOURS, assert_trivial=True)
    b = gl.convert_layout(b, FOURS, assert_trivial=True)
    c = gl.convert_layout(c, FOURS, assert_trivial=True)
    d = gl.convert_layout(d, FOURS, assert_trivial=True)
    addresses = addresses_of_fours(sum_ptr, COLUMNS)
    if adds_first:
        gl.inline_asm_elementwise(
            "st.relaxed.gpu.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;", "=r,l,r,r,r,r,~{memory}",
            [addresses, a, b, c, d], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        gl.inline_asm_elementwise(
            "red.relaxed.gpu.global.add.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;", "=r,l,r,r,r,r,~{memory}",
            [addresses, a, b, c, d], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@gluon.jit
def sum_so_far(sum_ptr, DQ: gl.constexpr, COLUMNS: gl.constexpr):
    """Load the sum, [64, COLUMNS], in the layout of dq. From the L2 cache: the L1 cache may hold older sums."""
    a, b, c, d = gl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.v4.f32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l,~{memory}",
        [addresses_of_fours(sum_ptr, COLUMNS)],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=False, pack=1,
    )  # fmt: skip
    # [warp, column of eight, row, column of two, row of eight, column]
    fours = gl.join(gl.join(a, c), gl.join(b, d)).reshape([4, COLUMNS // 8, 8, 4, 2, 2])
    return gl.convert_layout(fours.permute([0, 4, 2, 1, 3, 5]).reshape([64, COLUMNS]), DQ, assert_trivial=True)
