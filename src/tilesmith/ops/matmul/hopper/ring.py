"""What half-precision Hopper kernels share. Each runs the epilogue of a tile while it multiplies the next one.

Persistent programs take tile after tile of 128 rows × 256 columns. One warp only loads: TMA fetches both operands, in
steps of 64 along the depth, into a ring in shared memory. Two warpgroups multiply 64 rows each. When a tile is done,
the warpgroup rounds its sums, two in a register, and starts the next tile at once. While the tensor cores run its first
steps, the warpgroup computes and stores the epilogue of the tile before. So the tensor cores wait neither for the
epilogue nor for memory. Warps wait for mbarriers.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.matmul.hopper.sizes import COLUMNS, GROUPS, ROWS
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain.gluon import reinterpreted


@gluon.jit
def corner_of(tile, n_row_tiles, n_column_tiles, TOGETHER: gl.constexpr):
    """Return the first row of a tile and the number of its column of tiles.

    TOGETHER tiles below each other come before the next column: programs that run at the same time share rows and
    columns in the L2 cache.
    """
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
    """Start the step of this number, counted through all tiles, wait for the step before, and free its stage.

    The FIRST step of a tile does not wait. TURNED: the right operand lies as [columns, depth]. LEFT_TURNED: the left
    operand lies as [depth, rows]. Returns the sums [ROWS, COLUMNS], which are not complete yet.
    """
    left_tiles, right_tiles, ready, free = memory
    STAGES: gl.constexpr = ready.shape[0]
    slot = number % STAGES
    mbarrier.wait(ready.index(slot), number // STAGES % 2)
    if LEFT_TURNED:  # left is [ROWS, DEPTH] and right [DEPTH, COLUMNS], in shared memory, either way
        left = as_matrix(left_tiles.index(slot)).slice(PART * ROWS, ROWS, dim=1).permute([1, 0])
    else:
        left = as_matrix(left_tiles.index(slot)).slice(PART * ROWS, ROWS)
    right = as_matrix(right_tiles.index(slot))
    if TURNED:
        right = right.permute([1, 0])
    total = warpgroup_mma(left, right, total, use_acc=not FIRST, is_async=True)
    if not FIRST:
        total = warpgroup_mma_wait(1, deps=[total])
        mbarrier.arrive(free.index((number - 1) % STAGES), count=1)
    return total


@gluon.jit
def as_matrix(tile):
    """Return shared memory without the dimension of matrices, where it has one."""
    if len(tile.shape) == 3:
        tile = tile.reshape([tile.shape[1], tile.shape[2]])
    return tile


@gluon.jit
def end_of_product(total, memory, number):
    """Wait for the step before this number, free its stage, and return the sums [ROWS, COLUMNS]."""
    _left_tiles, _right_tiles, ready, free = memory
    total = warpgroup_mma_wait(0, deps=[total])
    mbarrier.arrive(free.index((number - 1) % ready.shape[0]), count=1)
    return total


@gluon.jit
def halves(x):
    """Return the left and the right half of the columns. Every thread has as many of each."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute([0, 2, 1]).split()  # [rows, columns / 2] each


@gluon.jit
def quarters(x):
    """Return the columns in four quarters."""
    left, right = halves(x)
    first, second = halves(left)
    third, fourth = halves(right)
    return first, second, third, fourth  # [rows, columns / 4] each


@gluon.jit
def rounded_pair(even, odd, DTYPE: gl.constexpr):
    """Round two columns to half precision, into one register."""
    NAME: gl.constexpr = "bf16" if gl.bfloat16 == DTYPE else "f16"
    return gl.inline_asm_elementwise(
        "cvt.rn." + NAME + "x2.f32 $0, $2, $1;", "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def pairs(x, DTYPE: gl.constexpr):
    """Round neighbouring columns to half precision, two in one register."""
    even, odd = x.reshape([x.shape[0], x.shape[1] // 2, 2]).split()  # [rows, columns / 2] each
    return rounded_pair(even, odd, DTYPE)  # [rows, columns / 2] of int32


@gluon.jit
def paired(place):
    """Return the shared memory of a chunk, [ROWS, columns], seen as pairs of columns, [ROWS, columns / 2]."""
    COLUMNS: gl.constexpr = place.shape[1] // 2
    return reinterpreted(place, gl.int32, [ROWS, COLUMNS], gl.NVMMASharedLayout(4 * COLUMNS, 32, 2))


@dataclass(frozen=True)
class RingConfig(Config):
    """STAGES: steps in the ring. TOGETHER: tiles below each other that run together.

    `programs`: the most persistent programs; 0 for one per multiprocessor.
    """

    STAGES: int = 3
    TOGETHER: int = 16
    programs: int = 0

    @property
    def all_warps(self) -> int:
        """Those that multiply, and one more warpgroup, of which one warp loads and the others end at once."""
        return (int(GROUPS.value) + 1) * int(GROUP_WARPS.value)

    def grid(self, plan: Plan, n_rows: int, n_columns: int, matrices: int = 1) -> tuple[int]:
        """Return the grid for so many columns of all weights together.

        Only as many programs run as stay busy to the last wave: more would save no time and take power from the others.
        """
        n_tiles = matrices * tiles(n_rows, n_columns)
        rounds = triton.cdiv(n_tiles, self.programs or plan.multiprocessors)
        return (triton.cdiv(n_tiles, rounds),)


def tiles(n_rows: int, n_columns: int) -> int:
    """Return how many tiles a matrix has."""
    across: int = triton.cdiv(n_columns, int(COLUMNS.value))
    return across * int(triton.cdiv(n_rows, int(GROUPS.value) * int(ROWS.value)))
