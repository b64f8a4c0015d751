"""What kernels for Hopper share that finish a tile of a product while they are at the next one.

A program takes tile after tile of 128 rows × 256 columns. One warp does nothing but fetch both sides of the product, in
steps of 64 along the depth, into a ring in shared memory. Two warpgroups multiply 64 rows each. When a tile is done,
its sums are rounded, two in a register, and the next tile is begun at once: its first steps leave time, while the
tensor cores are at them, to compute and store what follows from the tile before. So the tensor cores wait for neither
the elementwise part nor memory, and what is stored by the copy engine is on its way long before its place is needed.

Waiting is for barriers in shared memory, as in `attention/hopper_forward`.

Device code, and how such kernels are launched.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain.gluon import reinterpreted

GROUPS = gl.constexpr(2)  # warpgroups that multiply
ROWS = gl.constexpr(64)  # of a warpgroup
COLUMNS = gl.constexpr(256)  # of a tile
DEPTH = gl.constexpr(64)  # of a step
REGISTERS = gl.constexpr(240)  # of a thread that multiplies; one that fetches gives its own up for them
FETCHING_REGISTERS = gl.constexpr(24)
STEP_BYTES = gl.constexpr((2 * 64 + 256) * 64 * 2)
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def corner_of(tile, n_row_tiles, n_column_tiles, TOGETHER: gl.constexpr):
    """First row and number of the column tile. TOGETHER tiles below each other come before the next column, so that
    programs at work at one time share both rows and columns, which then come from the cache."""
    per_band = TOGETHER * n_column_tiles
    first = tile // per_band * TOGETHER
    height = gl.minimum(n_row_tiles - first, TOGETHER)
    within = tile % per_band
    return (first + within % height) * (GROUPS * ROWS), within // height


@gluon.jit
def step_of_product(
    total, memory, number,
    FIRST: gl.constexpr, PART: gl.constexpr, TURNED: gl.constexpr, LEFT_TURNED: gl.constexpr = False,
):  # fmt: skip
    """Begin the step of this number, counted through all tiles, and free the place of the one before, which is done.

    The first of a tile has none to wait for. TURNED: the right side lies as [columns, depth]. LEFT_TURNED: the left
    one lies as [depth, rows]."""
    left_tiles, right_tiles, ready, free = memory
    STAGES: gl.constexpr = ready.shape[0]
    slot = number % STAGES
    mbarrier.wait(ready.index(slot), number // STAGES % 2)
    if LEFT_TURNED:
        left = left_tiles.index(slot).slice(PART * ROWS, ROWS, dim=1).permute([1, 0])
    else:
        left = left_tiles.index(slot).slice(PART * ROWS, ROWS)
    right = right_tiles.index(slot)
    if TURNED:
        right = right.permute([1, 0])
    total = warpgroup_mma(left, right, total, use_acc=not FIRST, is_async=True)
    if not FIRST:
        total = warpgroup_mma_wait(1, deps=[total])
        mbarrier.arrive(free.index((number - 1) % STAGES), count=1)
    return total


@gluon.jit
def end_of_product(total, memory, number):
    """The sums, once the step before this number is done."""
    _left_tiles, _right_tiles, ready, free = memory
    total = warpgroup_mma_wait(0, deps=[total])
    mbarrier.arrive(free.index((number - 1) % ready.shape[0]), count=1)
    return total


@gluon.jit
def halves(x):
    """Left and right columns, which every thread has as many of."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute([0, 2, 1]).split()


@gluon.jit
def quarters(x):
    left, right = halves(x)
    first, second = halves(left)
    third, fourth = halves(right)
    return first, second, third, fourth


@gluon.jit
def rounded_pair(even, odd, DTYPE: gl.constexpr):
    """Two columns in one register."""
    NAME: gl.constexpr = "bf16" if gl.bfloat16 == DTYPE else "f16"
    return gl.inline_asm_elementwise(
        "cvt.rn." + NAME + "x2.f32 $0, $2, $1;", "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def pairs(x, DTYPE: gl.constexpr):
    """Neighbouring columns rounded, two in one register."""
    even, odd = x.reshape([x.shape[0], x.shape[1] // 2, 2]).split()
    return rounded_pair(even, odd, DTYPE)


@gluon.jit
def paired(place):
    """A place for a chunk, seen as of pairs."""
    COLUMNS: gl.constexpr = place.shape[1] // 2
    return reinterpreted(place, gl.int32, [ROWS, COLUMNS], gl.NVMMASharedLayout(4 * COLUMNS, 32, 2))


@dataclass(frozen=True)
class RingConfig(Config):
    """Room for STAGES steps; TOGETHER tiles below each other; and of programs no more than `programs`, or than there
    are multiprocessors if that is 0."""

    STAGES: int = 3
    TOGETHER: int = 16
    programs: int = 0

    @property
    def all_warps(self) -> int:
        """With those that fetch, of which there is a warpgroup, though all but one of its warps end at once."""
        return (int(GROUPS.value) + 1) * int(GROUP_WARPS.value)

    def grid(self, plan: Plan, n_rows: int, n_columns: int) -> tuple[int]:
        """For so many columns of all weights together: only as many programs as are all busy to the end, since others
        would make it no shorter and take power from these."""
        n_tiles = tiles(n_rows, n_columns)
        rounds = triton.cdiv(n_tiles, self.programs or plan.multiprocessors)
        return (triton.cdiv(n_tiles, rounds),)


def tiles(n_rows: int, n_columns: int) -> int:
    across: int = triton.cdiv(n_columns, int(COLUMNS.value))
    return across * int(triton.cdiv(n_rows, int(GROUPS.value) * int(ROWS.value)))
