"""Half-precision GEMM on Hopper: y = a·b for each matrix of a batch, or a sum of up to three products of matrices.

Read `ring.py` first.

The epilogue only rounds: the first four steps of a tile store the tile before. The steps of several pairs follow each
other into the same sums. So the gradient of an input of several linear layers is one product of their joint depth, and
nothing is added in memory.

The depth of each operand may be contiguous or not: the tensor cores read both from shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tilesmith.ops.device.hopper import GROUP_WARPS, barriers, runs_on_hopper
from tilesmith.ops.matmul.hopper.ring import (
    RingConfig,
    as_matrix,
    corner_of,
    end_of_product,
    paired,
    pairs,
    quarters,
    step_of_product,
    tiles,
)
from tilesmith.ops.matmul.hopper.sizes import COLUMNS, DEPTH, GROUPS, LOAD_REGISTERS, REGISTERS, ROWS, STEP_BYTES, SUMS
from tilesmith.ops.matmul.matrices import Side, in_batch
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.toolchain.gluon import fetch, put

CHUNK = gl.constexpr(64)  # columns of one store: 128 bytes, the widest row that TMA swizzles over all banks
CHUNKS = gl.constexpr(4)  # chunks of a tile


@gluon.jit(do_not_specialize=["n_matrices", "n_rows", "n_columns", "depth", "second_depth", "third_depth"])
def matmul_hopper_kernel(
    a, b, second_a, second_b, third_a, third_b, y, n_matrices, n_rows, n_columns, depth, second_depth, third_depth,
    PAIRS: gl.constexpr, A_ALONG: gl.constexpr, B_ALONG: gl.constexpr,
    STAGES: gl.constexpr, PLACES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """Compute tiles of y = Σ a·b over the first PAIRS pairs.

    All tensors are descriptors of [matrices, rows, columns]: a of both warpgroups' rows, b of a tile's columns, y of a
    chunk of one warpgroup's rows. Each warpgroup stores from PLACES buffers.
    """
    gl.static_assert(CHUNKS % PLACES == 0, "a tile's first chunk must not overwrite the buffer of one just stored")
    A_BLOCK: gl.constexpr = [GROUPS * ROWS, DEPTH] if A_ALONG else [DEPTH, GROUPS * ROWS]
    B_BLOCK: gl.constexpr = [COLUMNS, DEPTH] if B_ALONG else [DEPTH, COLUMNS]
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES, 1, A_BLOCK[0], A_BLOCK[1]], a.layout)
    b_tiles = gl.allocate_shared_memory(a.dtype, [STAGES, 1, B_BLOCK[0], B_BLOCK[1]], b.layout)
    staging = gl.allocate_shared_memory(a.dtype, [GROUPS * PLACES, 1, ROWS, CHUNK], y.layout)
    ready = barriers(STAGES, 1)
    free = barriers(STAGES, GROUPS)
    fence_async_shared()
    memory = (a_tiles, b_tiles, ready, free)
    factors = (a, b, second_a, second_b, third_a, third_b)
    sizes = (n_rows, n_columns, (depth, second_depth, third_depth), n_matrices)
    gl.warp_specialize(
        [
            (multiply, (y, memory, staging, sizes, PAIRS, A_ALONG, B_ALONG, PLACES, TOGETHER, 0)),
            (multiply, (y, memory, staging, sizes, PAIRS, A_ALONG, B_ALONG, PLACES, TOGETHER, 1)),
            (fetch_steps, (factors, memory, sizes, PAIRS, A_ALONG, B_ALONG, TOGETHER)),
        ],
        [GROUP_WARPS, 1],
        [REGISTERS, LOAD_REGISTERS],
    )


@gluon.jit
def tiles_of(sizes):
    """Return how many tiles of a matrix lie below each other, and side by side."""
    n_row_tiles = (sizes[0] + GROUPS * ROWS - 1) // (GROUPS * ROWS)
    return n_row_tiles, (sizes[1] + COLUMNS - 1) // COLUMNS


@gluon.jit
def place_of(tile, sizes, TOGETHER: gl.constexpr):
    """Return the matrix of a tile, and the tile's first row and column."""
    n_row_tiles, n_column_tiles = tiles_of(sizes)
    per_matrix = n_row_tiles * n_column_tiles
    row, column_tile = corner_of(tile % per_matrix, n_row_tiles, n_column_tiles, TOGETHER)
    return tile // per_matrix, row, column_tile * COLUMNS


@gluon.jit
def steps_of(sizes, PAIR: gl.constexpr):
    """Return how many steps the depth of this pair takes."""
    return (sizes[2][PAIR] + DEPTH - 1) // DEPTH


@gluon.jit
def fetch_steps(
    factors, memory, sizes, PAIRS: gl.constexpr, A_ALONG: gl.constexpr, B_ALONG: gl.constexpr, TOGETHER: gl.constexpr
):  # fmt: skip
    """Run the warp that loads both operands by TMA."""
    a_tiles, b_tiles, ready, free = memory
    STAGES: gl.constexpr = ready.shape[0]
    n_row_tiles, n_column_tiles = tiles_of(sizes)
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles * sizes[3], gl.num_programs(0)):
        matrix, row, column = place_of(tile, sizes, TOGETHER)
        for pair in gl.static_range(PAIRS):
            for step in range(steps_of(sizes, pair)):
                slot = number % STAGES
                # Wait until the step that used this stage is done; the first round finds every stage free.
                mbarrier.wait(free.index(slot), (number // STAGES + 1) % 2)
                mbarrier.expect(ready.index(slot), STEP_BYTES)
                along = step * DEPTH
                a_corner = [matrix, row, along] if A_ALONG else [matrix, along, row]
                b_corner = [matrix, column, along] if B_ALONG else [matrix, along, column]
                fetch(factors[2 * pair], a_corner, ready.index(slot), a_tiles.index(slot))
                fetch(factors[2 * pair + 1], b_corner, ready.index(slot), b_tiles.index(slot))
                number += 1


@gluon.jit
def multiply(
    y, memory, staging, sizes, PAIRS: gl.constexpr, A_ALONG: gl.constexpr, B_ALONG: gl.constexpr,
    PLACES: gl.constexpr, TOGETHER: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Run a warpgroup that multiplies, and stores the tile before."""
    n_row_tiles, n_column_tiles = tiles_of(sizes)
    steps = 0
    for pair in gl.static_range(PAIRS):
        steps += steps_of(sizes, pair)
    zeros = gl.zeros([ROWS, COLUMNS], gl.float32, SUMS)  # [ROWS, COLUMNS]
    # Before the first tile: TMA stores nothing below the last row.
    before = quarters(pairs(zeros, staging.dtype))  # 4 of [ROWS, CHUNK / 2] pairs
    corner = (0, n_row_tiles * (GROUPS * ROWS), 0)
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles * sizes[3], gl.num_programs(0)):
        total = zeros  # [ROWS, COLUMNS]
        for chunk in gl.static_range(CHUNKS):
            total = step_of_product(total, memory, number + chunk, chunk == 0, PART, B_ALONG, not A_ALONG)
            store_chunk(y, before, staging, corner, chunk, PLACES, PART)
        for step in range(CHUNKS, steps):
            total = step_of_product(total, memory, number + step, False, PART, B_ALONG, not A_ALONG)
        number += steps
        before = quarters(pairs(end_of_product(total, memory, number), staging.dtype))  # 4 of [ROWS, CHUNK / 2] pairs
        matrix, row, column = place_of(tile, sizes, TOGETHER)
        corner = (matrix, row + PART * ROWS, column)
    for chunk in gl.static_range(CHUNKS):
        store_chunk(y, before, staging, corner, chunk, PLACES, PART)
    tma.store_wait(0)


@gluon.jit
def store_chunk(y, before, staging, corner, chunk: gl.constexpr, PLACES: gl.constexpr, PART: gl.constexpr):
    """Store one chunk of the tile before, [ROWS, CHUNK]."""
    matrix, row, column = corner
    place = staging.index(PART * PLACES + chunk % PLACES)  # [1, ROWS, CHUNK] in shared memory
    tma.store_wait(PLACES - 1)
    paired(as_matrix(place)).store(before[chunk])
    fence_async_shared()
    put(y, [matrix, row, column + chunk * CHUNK], place)


@dataclass(frozen=True)
class HalfConfig(RingConfig):
    """PLACES: buffers to store chunks from. Shared memory has room for two with four STAGES, for four with three."""

    form: str = "half"
    STAGES: int = 4
    TOGETHER: int = 16
    PLACES: int = 2


MOST_PAIRS = 3

LEAST_DEPTH = 512
"""The first 4 steps of 64 store the tile before; other steps should follow them."""

LEAST_DEPTH_OF_BATCH = 193
"""Four steps. On an H200, 128 products of n×n take 15.4 µs with n = 256 and 167 with 768; by
`matmul_descriptors_kernel` they take 16.8 and 212 (`benchmarks/tuning/batched_products-h200.json`). Tiles of 128
columns gain 5 % with n = 384 and lose up to 16 %."""

LEAST_BUSY = 0.85
"""The share of multiprocessors that must have a tile, on average over all waves: below, cuBLAS has smaller tiles."""

LEAST_WAVES = 2
"""In a single wave no tile is stored while another is multiplied."""


def takes_half(plan: Plan, sides: Sequence[tuple[Side, Side]], y: Side) -> bool:
    """Return whether the kernel can compute the sum of these products of a and bᵀ."""
    operands = [operand for pair in sides for operand, _ in pair]
    return (
        runs_on_hopper(plan)
        and len(sides) <= MOST_PAIRS
        and y[0].dtype in (torch.bfloat16, torch.float16)
        and y[1]
        and {one.dtype for one in operands} == {y[0].dtype}
        and {one.shape[:-2] for one in operands} == {y[0].shape[:-2]}
        and len({(a_along, b_along) for (_, a_along), (_, b_along) in sides}) == 1
        and sum(_depth(a) for a, _ in sides) >= (LEAST_DEPTH if len(y[0].shape) == 2 else LEAST_DEPTH_OF_BATCH)
    )


def suits_half(plan: Plan, sides: Sequence[tuple[Side, Side]], y: Side) -> bool:
    """Return whether the kernel can compute the sum and is faster than the BLAS."""
    n_tiles = tiles(*y[0].shape)
    waves = triton.cdiv(n_tiles, plan.multiprocessors)
    is_busy = n_tiles >= LEAST_BUSY * waves * plan.multiprocessors
    return waves >= LEAST_WAVES and is_busy and takes_half(plan, sides, y)


def _depth(a: Side) -> int:
    operand, along = a
    return operand.shape[-1] if along else operand.shape[-2]


def plan_half(plan: Plan, sides: Sequence[tuple[Side, Side]], y: Operand) -> None:
    """Put y = Σ a·b on the plan, for pairs of a and bᵀ."""
    sizes = (*y.shape, sum(_depth(a) for a, _ in sides))
    launch_half(plan, sides, y, plan.choose(HalfConfig(), "half", *map(bucket, sizes), y.dtype))


def launch_half(plan: Plan, sides: Sequence[tuple[Side, Side]], y: Operand, config: HalfConfig) -> None:
    """Put the kernel on the plan with this config."""
    y = in_batch(y)
    matrices, n_rows, n_columns = y.shape
    depths = [_depth(a) for a, _ in sides]
    config = replace(config, num_warps=int(GROUP_WARPS.value))  # a sweep over other kernels may ask for more
    (_, a_along), (_, b_along) = sides[0]
    rows, columns, depth = int(GROUPS.value) * int(ROWS.value), int(COLUMNS.value), int(DEPTH.value)
    a_block = (1, rows, depth) if a_along else (1, depth, rows)
    b_block = (1, columns, depth) if b_along else (1, depth, columns)
    given: dict[str, object] = {}
    for number, place in enumerate(("", "second_", "third_")):
        there = number < len(sides)
        given[f"{place}a"] = in_batch(sides[number][0][0]).gluon_descriptor(a_block) if there else None
        given[f"{place}b"] = in_batch(sides[number][1][0]).gluon_descriptor(b_block) if there else None
        given[f"{place}depth"] = depths[number] if there else 0
    plan.launch(
        matmul_hopper_kernel, config.grid(plan, n_rows, n_columns, matrices), config, **given,
        y=y.gluon_descriptor((1, int(ROWS.value), int(CHUNK.value))), n_matrices=matrices, n_rows=n_rows,
        n_columns=n_columns, PAIRS=len(sides), A_ALONG=a_along, B_ALONG=b_along,
    )  # fmt: skip
