"""Half-precision GEMM on Hopper with tiles of many sizes.

It computes products whose tiles of 128 × 256 would be partly empty, or too few to fill the GPU.

Programs are persistent. One producer warp loads blocks of both operands by TMA into a ring of STAGES slots in shared
memory. Two consumer warpgroups multiply half of a tile's rows each, and store their sums while the producer loads the
next tile.

A tile may be two blocks of columns side by side, 128 and 64 for instance: both share the loads of the rows. TURNED: the
kernel computes yᵀ = bᵀ·aᵀ. A wgmma always takes 64 rows, but as few as 8 columns: few rows of y are then columns.
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

from tilesmith.ops.device.hopper import FETCHING_REGISTERS, GROUP_WARPS, barriers
from tilesmith.ops.matmul.hopper.ring import as_matrix
from tilesmith.toolchain.gluon import fetch, put

GROUPS = gl.constexpr(2)  # consumer warpgroups
DEPTH = gl.constexpr(64)  # of a step: 128 bytes, the widest row that TMA swizzles over all banks


class Memory(NamedTuple):
    """The ring and the buffers of results in shared memory, and the mbarriers that signal a slot loaded or free."""

    a: Any  # [STAGES, 1, ROWS, DEPTH], or [STAGES, 1, DEPTH, ROWS]
    b: Any  # [STAGES, 1, COLUMNS, DEPTH], or [STAGES, 1, DEPTH, COLUMNS]
    b_more: Any
    results: Any  # [GROUPS, 1, ROWS / GROUPS, COLUMNS]
    results_more: Any
    ready: Any
    free: Any


class Sizes(NamedTuple):
    """What a program computes: tiles of a matrix, or of one part of its depth."""

    n_rows: Any
    n_columns: Any
    n_matrices: Any
    n_outer: Any  # matrices times parts of the depth
    n_steps: Any  # of the whole depth
    steps_per_split: Any


class Form(NamedTuple):
    """The compile-time constants of the kernel."""

    ROWS: int
    COLUMNS: int
    MORE: int
    STAGES: int
    TOGETHER: int
    A_ALONG: bool
    B_ALONG: bool
    TURNED: bool


@gluon.constexpr_function
def form(rows, columns, more, stages, together, a_along, b_along, turned):
    return Form(rows, columns, more, stages, together, a_along, b_along, turned)


@gluon.jit(do_not_specialize=["n_matrices", "n_outer", "n_rows", "n_columns", "n_steps", "steps_per_split"])
def matmul_hopper_tiles_kernel(
    a, b, b_more, y, y_more, y_ptr, y_strides, n_matrices, n_outer, n_rows, n_columns, n_steps, steps_per_split,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, MORE: gl.constexpr, STAGES: gl.constexpr, TOGETHER: gl.constexpr,
    A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, TURNED: gl.constexpr, UNIT: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute tiles of ROWS × (COLUMNS + MORE) of y, or of one part of the depth each.

    a, b and y are descriptors of [matrices, rows, columns]. Without a descriptor, y_ptr and its strides store y: those
    of an outer index, a row and a column of tiles. With MORE, `b_more` and `y_more` walk b and y in blocks of MORE.
    UNIT divides the number of columns.
    """
    FORM: gl.constexpr = form(ROWS, COLUMNS, MORE, STAGES, TOGETHER, A_ALONG, B_ALONG, TURNED)
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout)  # noqa: RUF005  # Triton does not unpack
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout)  # noqa: RUF005  # Triton does not unpack
    more_tiles = b_tiles
    results = b_tiles
    results_more = b_tiles
    if MORE > 0:
        more_tiles = gl.allocate_shared_memory(b.dtype, [STAGES] + b_more.block_shape, b_more.layout)  # noqa: RUF005  # Triton does not unpack
    if y is not None:
        results = gl.allocate_shared_memory(y.dtype, [GROUPS] + y.block_shape, y.layout)  # noqa: RUF005  # Triton does not unpack
        if MORE > 0:
            results_more = gl.allocate_shared_memory(y.dtype, [GROUPS] + y_more.block_shape, y_more.layout)  # noqa: RUF005  # Triton does not unpack
    ready = barriers(STAGES, 1)
    free = barriers(STAGES, GROUPS)
    fence_async_shared()
    memory = Memory(a_tiles, b_tiles, more_tiles, results, results_more, ready, free)
    sizes = Sizes(n_rows, n_columns // UNIT * UNIT, n_matrices, n_outer, n_steps, steps_per_split)
    gl.warp_specialize(
        [
            (multiply, (y, y_more, y_ptr, y_strides, memory, sizes, FORM, 0)),
            (multiply, (y, y_more, y_ptr, y_strides, memory, sizes, FORM, 1)),
            (fetch_steps, (a, b, b_more, memory, sizes, FORM)),
        ],
        [GROUP_WARPS, 1],
        [REGISTERS, FETCHING_REGISTERS],
    )


@gluon.jit
def count_of_tiles(sizes, FORM: gl.constexpr):
    """Return how many tiles lie below each other, and side by side."""
    ROWS: gl.constexpr = FORM.ROWS
    COLUMNS: gl.constexpr = FORM.COLUMNS + FORM.MORE
    return (sizes.n_rows + ROWS - 1) // ROWS, (sizes.n_columns + COLUMNS - 1) // COLUMNS


@gluon.jit
def place_of(tile, sizes, FORM: gl.constexpr):
    """Return a tile's outer index, first row and first column, and its first step and number of steps.

    TOGETHER tiles below each other come before the next column: programs that run at the same time share rows and
    columns in the L2 cache.
    """
    ROWS: gl.constexpr = FORM.ROWS
    COLUMNS: gl.constexpr = FORM.COLUMNS + FORM.MORE
    TOGETHER: gl.constexpr = FORM.TOGETHER
    n_row_tiles, n_column_tiles = count_of_tiles(sizes, FORM)
    per_matrix = n_row_tiles * n_column_tiles
    outer = tile // per_matrix
    within = tile % per_matrix
    band = within // (TOGETHER * n_column_tiles) * TOGETHER
    height = gl.minimum(n_row_tiles - band, TOGETHER)
    within = within % (TOGETHER * n_column_tiles)
    first_step = outer // sizes.n_matrices * sizes.steps_per_split
    steps = gl.minimum(sizes.n_steps - first_step, sizes.steps_per_split)
    return outer, (band + within % height) * ROWS, within // height * COLUMNS, first_step, steps


@gluon.jit
def fetch_steps(a, b, b_more, memory, sizes, FORM: gl.constexpr):
    """Run the producer warp."""
    COLUMNS: gl.constexpr = FORM.COLUMNS
    STAGES: gl.constexpr = FORM.STAGES
    BYTES: gl.constexpr = (FORM.ROWS + COLUMNS + FORM.MORE) * DEPTH * 2
    n_row_tiles, n_column_tiles = count_of_tiles(sizes, FORM)
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles * sizes.n_outer, gl.num_programs(0)):
        outer, row, column, first_step, steps = place_of(tile, sizes, FORM)
        matrix = outer % sizes.n_matrices
        for step in range(first_step, first_step + steps):
            slot = number % STAGES
            # Wait until the step that used this slot is done; the first round finds every slot free.
            mbarrier.wait(memory.free.index(slot), (number // STAGES + 1) % 2)
            ready = memory.ready.index(slot)
            mbarrier.expect(ready, BYTES)
            along = step * DEPTH
            a_corner = [matrix, row, along] if FORM.A_ALONG else [matrix, along, row]
            b_corner = [matrix, column, along] if FORM.B_ALONG else [matrix, along, column]
            fetch(a, a_corner, ready, memory.a.index(slot))
            fetch(b, b_corner, ready, memory.b.index(slot))
            if FORM.MORE > 0:
                further = column + COLUMNS
                more_corner = [matrix, further, along] if FORM.B_ALONG else [matrix, along, further]
                fetch(b_more, more_corner, ready, memory.b_more.index(slot))
            number += 1


@gluon.jit
def multiply(y, y_more, y_ptr, y_strides, memory, sizes, FORM: gl.constexpr, PART: gl.constexpr):
    """Run a consumer warpgroup: half of each tile's rows."""
    COLUMNS: gl.constexpr = FORM.COLUMNS
    MORE: gl.constexpr = FORM.MORE
    STAGES: gl.constexpr = FORM.STAGES
    ROWS: gl.constexpr = FORM.ROWS // GROUPS
    BESIDE: gl.constexpr = MORE if MORE > 0 else COLUMNS
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, COLUMNS, 16])
    SUMS_BESIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, BESIDE, 16])
    n_row_tiles, n_column_tiles = count_of_tiles(sizes, FORM)
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles * sizes.n_outer, gl.num_programs(0)):
        outer, row, column, _first_step, steps = place_of(tile, sizes, FORM)
        row += PART * ROWS
        total = gl.zeros([ROWS, COLUMNS], gl.float32, SUMS)  # [ROWS, COLUMNS]
        more = gl.zeros([ROWS, BESIDE], gl.float32, SUMS_BESIDE)  # [ROWS, MORE]; without MORE never used
        for step in range(steps):
            slot = number % STAGES
            mbarrier.wait(memory.ready.index(slot), number // STAGES % 2)
            left = as_matrix(memory.a.index(slot))  # [ROWS, DEPTH] of this warpgroup, in shared memory, either way
            if FORM.A_ALONG:
                left = left.slice(PART * ROWS, ROWS)
            else:
                left = left.slice(PART * ROWS, ROWS, dim=1).permute([1, 0])
            total = warpgroup_mma(left, right_of(memory.b.index(slot), FORM.B_ALONG), total, is_async=True)
            if MORE > 0:
                more = warpgroup_mma(left, right_of(memory.b_more.index(slot), FORM.B_ALONG), more, is_async=True)
                total, more = warpgroup_mma_wait(2, deps=[total, more])
            else:
                total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(memory.free.index((number + STAGES - 1) % STAGES), count=1, pred=step > 0)
            number += 1
        if MORE > 0:
            total, more = warpgroup_mma_wait(0, deps=[total, more])
        else:
            total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(memory.free.index((number + STAGES - 1) % STAGES), count=1, pred=steps > 0)
        if y is None:
            store_by_pointers(y_ptr, y_strides, total, (outer, row, column), sizes, SUMS)
            if MORE > 0:
                store_by_pointers(y_ptr, y_strides, more, (outer, row, column + COLUMNS), sizes, SUMS_BESIDE)
        else:
            tma.store_wait(0)  # the results of the tile before have left the buffers
            place = memory.results.index(PART)
            turned(place, FORM.TURNED).store(total.to(y.dtype))
            if MORE > 0:
                place_more = memory.results_more.index(PART)
                turned(place_more, FORM.TURNED).store(more.to(y.dtype))
            fence_async_shared()
            put(y, [outer, column, row] if FORM.TURNED else [outer, row, column], place)
            if MORE > 0:
                further = column + COLUMNS
                put(y_more, [outer, further, row] if FORM.TURNED else [outer, row, further], place_more)
    tma.store_wait(0)


@gluon.jit
def right_of(tile, ALONG: gl.constexpr):
    """Return the right operand [DEPTH, columns] in shared memory."""
    right = as_matrix(tile)
    if ALONG:
        right = right.permute([1, 0])
    return right


@gluon.jit
def turned(place, TURNED: gl.constexpr):
    """Return the buffer of results as [ROWS, columns]."""
    place = as_matrix(place)
    if TURNED:
        place = place.permute([1, 0])
    return place


@gluon.jit
def store_by_pointers(y_ptr, y_strides, sums, corner, sizes, LAYOUT: gl.constexpr):
    """Store sums [ROWS, columns] where they belong."""
    outer, first_row, first_column = corner
    rows = first_row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, LAYOUT))  # [ROWS]
    columns = first_column + gl.arange(0, sums.shape[1], gl.SliceLayout(0, LAYOUT))  # [columns]
    start = y_ptr + outer.to(gl.int64) * y_strides[0]
    pointers = start + rows.to(gl.int64)[:, None] * y_strides[1] + columns.to(gl.int64)[None, :] * y_strides[2]
    mask = (rows < sizes.n_rows)[:, None] & (columns < sizes.n_columns)[None, :]
    gl.store(pointers, sums.to(y_ptr.dtype.element_ty), mask=mask)
