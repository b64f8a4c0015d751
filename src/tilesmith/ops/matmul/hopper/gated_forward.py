"""SwiGLU or GeGLU forward on Hopper: gate = x·Wgᵀ, up = x·Wuᵀ, act(gate)·up in one kernel. Read `ring.py` first.

A tile multiplies 128 rows of each weight, so one product gives the same 128 columns of gate and of up.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tilesmith.ops.device.hopper import GROUP_WARPS, barriers
from tilesmith.ops.matmul.hopper.gated_tiles import argument, of_pair, opened
from tilesmith.ops.matmul.hopper.ring import (
    RingConfig,
    corner_of,
    end_of_product,
    halves,
    paired,
    pairs,
    rounded_pair,
    step_of_product,
)
from tilesmith.ops.matmul.hopper.sizes import COLUMNS, DEPTH, GROUPS, LOAD_REGISTERS, REGISTERS, ROWS, STEP_BYTES, SUMS
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.toolchain.gluon import fetch, put, reinterpreted

CHUNK = gl.constexpr(64)  # columns of one store: 128 bytes, the widest row that TMA swizzles over all banks
CHUNKS = gl.constexpr(6)  # chunks of a tile: gate, up and hidden, in two halves


@gluon.jit(do_not_specialize=["n_rows", "n_columns", "depth"])
def gated_forward_hopper_kernel(
    x, gate_weight, up_weight, gate, up, hidden, n_rows, n_columns, depth,
    ACTIVATION: gl.constexpr, STAGES: gl.constexpr, PLACES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """Compute tiles of gate, up and hidden.

    All tensors are descriptors: x of both warpgroups' rows, weights of half the columns of a tile, results of a chunk
    of one warpgroup's rows. Each warpgroup stores from PLACES buffers.
    """
    gl.static_assert(CHUNKS % PLACES == 0, "a tile's first chunk must not overwrite the buffer of one just stored")
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, GROUPS * ROWS, DEPTH], x.layout)
    weight_tiles = gl.allocate_shared_memory(x.dtype, [2 * STAGES, COLUMNS // 2, DEPTH], gate_weight.layout)
    staging = gl.allocate_shared_memory(x.dtype, [GROUPS * PLACES, ROWS, CHUNK], gate.layout)
    ready = barriers(STAGES, 1)
    free = barriers(STAGES, GROUPS)
    fence_async_shared()
    memory = (x_tiles, weight_tiles, ready, free)
    sizes = (n_rows, n_columns, depth)
    results = (gate, up, hidden)
    gl.warp_specialize(
        [
            (multiply, (results, memory, staging, sizes, PLACES, TOGETHER, ACTIVATION, 0)),
            (multiply, (results, memory, staging, sizes, PLACES, TOGETHER, ACTIVATION, 1)),
            (fetch_steps, (x, gate_weight, up_weight, memory, sizes, TOGETHER)),
        ],
        [GROUP_WARPS, 1],
        [REGISTERS, LOAD_REGISTERS],
    )


@gluon.jit
def work(sizes):
    """Return how many tiles lie below each other and side by side, and the steps of each."""
    n_rows, n_columns, depth = sizes
    n_row_tiles = (n_rows + GROUPS * ROWS - 1) // (GROUPS * ROWS)
    n_column_tiles = (n_columns + COLUMNS // 2 - 1) // (COLUMNS // 2)
    return n_row_tiles, n_column_tiles, (depth + DEPTH - 1) // DEPTH


@gluon.jit
def fetch_steps(x, gate_weight, up_weight, memory, sizes, TOGETHER: gl.constexpr):
    """Run the warp that loads x and both weights by TMA."""
    x_tiles, weight_tiles, ready, free = memory
    STAGES: gl.constexpr = ready.shape[0]
    n_row_tiles, n_column_tiles, steps = work(sizes)
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles, gl.num_programs(0)):
        row, column_tile = corner_of(tile, n_row_tiles, n_column_tiles, TOGETHER)
        column = column_tile * (COLUMNS // 2)
        for step in range(steps):
            slot = number % STAGES
            mbarrier.wait(free.index(slot), (number // STAGES + 1) % 2)  # the first round finds all free
            mbarrier.expect(ready.index(slot), STEP_BYTES)
            fetch(x, [row, step * DEPTH], ready.index(slot), x_tiles.index(slot))
            fetch(gate_weight, [column, step * DEPTH], ready.index(slot), weight_tiles.index(2 * slot))
            fetch(up_weight, [column, step * DEPTH], ready.index(slot), weight_tiles.index(2 * slot + 1))
            number += 1


@gluon.jit
def multiply(
    results, memory, staging, sizes,
    PLACES: gl.constexpr, TOGETHER: gl.constexpr, ACTIVATION: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Run a warpgroup that multiplies, and runs the epilogue of the tile before."""
    x_tiles, weight_tiles, ready, free = memory
    STAGES: gl.constexpr = ready.shape[0]
    # Both weights of a stage below each other, [STAGES, COLUMNS, DEPTH].
    both = reinterpreted(weight_tiles, x_tiles.dtype, [STAGES, COLUMNS, DEPTH], weight_tiles.layout)
    memory = (x_tiles, both, ready, free)
    n_row_tiles, n_column_tiles, steps = work(sizes)
    zeros = gl.zeros([ROWS, COLUMNS], gl.float32, SUMS)  # [ROWS, COLUMNS]
    # Before the first tile: TMA stores nothing below the last row.
    before = gate_and_up(zeros, staging.dtype)  # 4 of [ROWS, CHUNK / 2] pairs
    row, column = n_row_tiles * (GROUPS * ROWS), 0
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles, gl.num_programs(0)):
        total = zeros  # [ROWS, COLUMNS]
        for chunk in gl.static_range(CHUNKS):
            total = step_of_product(total, memory, number + chunk, chunk == 0, PART, True)
            store_chunk(results, before, staging, row, column, chunk, PLACES, ACTIVATION, PART)
        for step in range(CHUNKS, steps):
            total = step_of_product(total, memory, number + step, False, PART, True)
        number += steps
        before = gate_and_up(end_of_product(total, memory, number), staging.dtype)
        row, column_tile = corner_of(tile, n_row_tiles, n_column_tiles, TOGETHER)
        row, column = row + PART * ROWS, column_tile * (COLUMNS // 2)
    for chunk in gl.static_range(CHUNKS):
        store_chunk(results, before, staging, row, column, chunk, PLACES, ACTIVATION, PART)
    tma.store_wait(0)


@gluon.jit
def gate_and_up(total, DTYPE: gl.constexpr):
    """Return the chunks of gate and of up, rounded, in pairs."""
    gate, up = halves(pairs(total, DTYPE))  # [ROWS, CHUNK] pairs each
    gate_left, gate_right = halves(gate)
    up_left, up_right = halves(up)
    return gate_left, gate_right, up_left, up_right  # [ROWS, CHUNK / 2] pairs each


@gluon.jit
def store_chunk(
    results, before, staging, row, column, chunk: gl.constexpr,
    PLACES: gl.constexpr, ACTIVATION: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Store one chunk [ROWS, CHUNK]: gate, up and hidden of the left columns, then of the right ones."""
    HALF: gl.constexpr = chunk // 3
    KIND: gl.constexpr = chunk % 3
    gate, up = before[HALF], before[2 + HALF]  # [ROWS, CHUNK / 2] pairs each, as value
    if KIND == 0:
        value = gate
    elif KIND == 1:
        value = up
    else:
        value = gated(gate, up, staging.dtype, ACTIVATION)
    place = staging.index(PART * PLACES + chunk % PLACES)
    tma.store_wait(PLACES - 1)
    paired(place).store(value)
    fence_async_shared()
    put(results[KIND], [row, column + HALF * CHUNK], place)


@gluon.jit
def gated(gate, up, DTYPE: gl.constexpr, ACTIVATION: gl.constexpr):
    """Return the activation of gate times up, of pairs, [ROWS, CHUNK / 2]."""
    gate_even, gate_odd = of_pair(gate, DTYPE)
    up_even, up_odd = of_pair(up, DTYPE)
    even = gate_even * opened(argument(gate_even, ACTIVATION)) * up_even
    return rounded_pair(even, gate_odd * opened(argument(gate_odd, ACTIVATION)) * up_odd, DTYPE)


@dataclass(frozen=True)
class GatedForwardConfig(RingConfig):
    """PLACES: buffers to store chunks from. Shared memory has room for two with four STAGES.

    8192 rows, 8192 columns of each weight and a depth of 2048 in bf16 take 824 µs on an H200. Two GEMMs by cuBLAS and
    the SwiGLU kernel take 968, the GEMMs alone 869. Three stages, three places and TOGETHER=16 took 851; 132 programs
    instead of 128 took 869.
    """

    STAGES: int = 4
    TOGETHER: int = 32
    PLACES: int = 2


def plan_hopper_forward(
    plan: Plan, x: Operand, gate_weight: Operand, up_weight: Operand, activation: str
) -> tuple[Operand, Operand, Operand]:
    """Put the kernel on the plan; return gate, up and hidden."""
    (n_rows, depth), (n_columns, _) = x.shape, gate_weight.shape
    gate, up, hidden = (plan.empty((n_rows, n_columns), x.dtype) for _ in range(3))
    config = plan.choose(GatedForwardConfig(), "hopper", bucket(n_rows), bucket(n_columns), bucket(depth), x.dtype)
    weight_block = int(COLUMNS.value) // 2, int(DEPTH.value)
    chunk = int(ROWS.value), int(CHUNK.value)
    plan.launch(
        gated_forward_hopper_kernel, config.grid(plan, n_rows, 2 * n_columns), config,
        x=x.gluon_descriptor((int(GROUPS.value) * int(ROWS.value), int(DEPTH.value))),
        gate_weight=gate_weight.gluon_descriptor(weight_block), up_weight=up_weight.gluon_descriptor(weight_block),
        gate=gate.gluon_descriptor(chunk), up=up.gluon_descriptor(chunk), hidden=hidden.gluon_descriptor(chunk),
        n_rows=n_rows, n_columns=n_columns, depth=depth, ACTIVATION=activation,
    )  # fmt: skip
    return gate, up, hidden
