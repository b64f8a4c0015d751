"""SwiGLU backward on Hopper: the gradients of gate and up from dy, and silu(gate)·up again. Read `ring.py` first.

dh = dy·W, the gradient of the last layer's input, is as large as gate and is never stored. Each warpgroup loads gate
and up a chunk at a time, the first chunks of a tile while the tile is still multiplied. Their gradients are stored from
the same buffers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tilesmith.ops.device.hopper import GROUP_WARPS, barriers
from tilesmith.ops.matmul.hopper.gated_tiles import GatedConfig, of_pair, opened
from tilesmith.ops.matmul.hopper.ring import (
    corner_of,
    end_of_product,
    halves,
    paired,
    pairs,
    quarters,
    rounded_pair,
    step_of_product,
)
from tilesmith.ops.matmul.hopper.sizes import COLUMNS, DEPTH, GROUPS, LOAD_REGISTERS, REGISTERS, ROWS, STEP_BYTES, SUMS
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.toolchain.gluon import fetch, put

CHUNK = gl.constexpr(32)  # columns of one step of the epilogue
CHUNKS = gl.constexpr(8)  # chunks of a tile
KEPT = gl.constexpr(4)  # chunks that wait in shared memory: registers do not hold all of them beside the next tile
PLACES = gl.constexpr(2)  # buffers for chunks of gate and up


@gluon.jit(do_not_specialize=["n_rows", "n_columns", "depth"])
def gated_backward_hopper_kernel(
    dy, weight, gate, up, dgate, dup, hidden, n_rows, n_columns, depth,
    STAGES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """Compute tiles of dgate, dup and hidden.

    All tensors are descriptors: dy of both warpgroups' rows, the weight of a tile's columns, others of a chunk of one
    warpgroup's rows.
    """
    dy_tiles = gl.allocate_shared_memory(dy.dtype, [STAGES, GROUPS * ROWS, DEPTH], dy.layout)
    weight_tiles = gl.allocate_shared_memory(dy.dtype, [STAGES, DEPTH, COLUMNS], weight.layout)
    gate_places = gl.allocate_shared_memory(dy.dtype, [GROUPS * PLACES, ROWS, CHUNK], gate.layout)
    up_places = gl.allocate_shared_memory(dy.dtype, [GROUPS * PLACES, ROWS, CHUNK], gate.layout)
    hidden_places = gl.allocate_shared_memory(dy.dtype, [GROUPS, ROWS, CHUNK], gate.layout)
    kept_places = gl.allocate_shared_memory(dy.dtype, [GROUPS * KEPT, ROWS, CHUNK], gate.layout)
    ready = barriers(STAGES, 1)
    free = barriers(STAGES, GROUPS)
    arrived = barriers(GROUPS * PLACES, 1)
    fence_async_shared()
    memory = (dy_tiles, weight_tiles, ready, free)
    places = (gate_places, up_places, hidden_places, kept_places, arrived)
    sizes = (n_rows, n_columns, depth)
    given, results = (gate, up), (dgate, dup, hidden)
    gl.warp_specialize(
        [
            (multiply, (given, results, memory, places, sizes, TOGETHER, 0)),
            (multiply, (given, results, memory, places, sizes, TOGETHER, 1)),
            (fetch_steps, (dy, weight, memory, sizes, TOGETHER)),
        ],
        [GROUP_WARPS, 1],
        [REGISTERS, LOAD_REGISTERS],
    )


@gluon.jit
def work(sizes):
    """Return how many tiles lie below each other and side by side, and the steps of each."""
    n_rows, n_columns, depth = sizes
    n_row_tiles = (n_rows + GROUPS * ROWS - 1) // (GROUPS * ROWS)
    return n_row_tiles, (n_columns + COLUMNS - 1) // COLUMNS, (depth + DEPTH - 1) // DEPTH


@gluon.jit
def fetch_steps(dy, weight, memory, sizes, TOGETHER: gl.constexpr):
    """Run the warp that loads dy and the weight by TMA."""
    dy_tiles, weight_tiles, ready, free = memory
    STAGES: gl.constexpr = ready.shape[0]
    n_row_tiles, n_column_tiles, steps = work(sizes)
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles, gl.num_programs(0)):
        row, column_tile = corner_of(tile, n_row_tiles, n_column_tiles, TOGETHER)
        for step in range(steps):
            slot = number % STAGES
            mbarrier.wait(free.index(slot), (number // STAGES + 1) % 2)  # the first round finds all free
            mbarrier.expect(ready.index(slot), STEP_BYTES)
            fetch(dy, [row, step * DEPTH], ready.index(slot), dy_tiles.index(slot))
            fetch(weight, [step * DEPTH, column_tile * COLUMNS], ready.index(slot), weight_tiles.index(slot))
            number += 1


@gluon.jit
def multiply(given, results, memory, places, sizes, TOGETHER: gl.constexpr, PART: gl.constexpr):
    """Run a warpgroup that multiplies, and runs the epilogue of the tile before.

    Every other step finishes a chunk. The steps between load the next chunk into its buffer.
    """
    n_row_tiles, n_column_tiles, steps = work(sizes)
    zeros = gl.zeros([ROWS, COLUMNS], gl.float32, SUMS)  # [ROWS, COLUMNS]
    # Before the first tile: below the last row TMA loads zeros and stores nothing.
    before = rounded(zeros, places, PART)  # 4 of [ROWS, CHUNK / 2] pairs
    row, column = n_row_tiles * (GROUPS * ROWS), 0
    for chunk in gl.static_range(PLACES):
        load_chunk(given, places, row, column, chunk, PART)
    number = 0
    for tile in range(gl.program_id(0), n_row_tiles * n_column_tiles, gl.num_programs(0)):
        next_row, column_tile = corner_of(tile, n_row_tiles, n_column_tiles, TOGETHER)
        next_row, next_column = next_row + PART * ROWS, column_tile * COLUMNS
        total = zeros  # [ROWS, COLUMNS]
        for chunk in gl.static_range(CHUNKS):
            total = step_of_product(total, memory, number + 2 * chunk, chunk == 0, PART, False)
            finish_chunk(results, before, places, row, column, chunk, PART)
            total = step_of_product(total, memory, number + 2 * chunk + 1, False, PART, False)
            tma.store_wait(0)
            if chunk + PLACES < CHUNKS:
                load_chunk(given, places, row, column, chunk + PLACES, PART)
            else:
                load_chunk(given, places, next_row, next_column, chunk + PLACES - CHUNKS, PART)
        for step in range(2 * CHUNKS, steps):
            total = step_of_product(total, memory, number + step, False, PART, False)
        number += steps
        before = rounded(end_of_product(total, memory, number), places, PART)
        row, column = next_row, next_column
    for chunk in gl.static_range(CHUNKS):
        finish_chunk(results, before, places, row, column, chunk, PART)
        tma.store_wait(0)
        if chunk + PLACES < CHUNKS:
            load_chunk(given, places, row, column, chunk + PLACES, PART)


@gluon.jit
def rounded(total, places, PART: gl.constexpr):
    """Return the chunks of the left half of dh, rounded, in pairs; put those of the right half into shared memory."""
    _gate_places, _up_places, _hidden_places, kept_places, _arrived = places
    left, right = halves(pairs(total, kept_places.dtype))  # [ROWS, COLUMNS / 4] pairs each
    kept = quarters(right)  # 4 of [ROWS, CHUNK / 2] pairs
    for chunk in gl.static_range(KEPT):
        paired(kept_places.index(PART * KEPT + chunk)).store(kept[chunk])
    return quarters(left)


@gluon.jit
def load_chunk(given, places, row, column, chunk: gl.constexpr, PART: gl.constexpr):
    """Start loading this chunk of gate and up, [ROWS, CHUNK] each."""
    gate, up = given
    gate_places, up_places, _hidden_places, _kept_places, arrived = places
    place = PART * PLACES + chunk % PLACES
    mbarrier.expect(arrived.index(place), 2 * ROWS * CHUNK * 2)
    fetch(gate, [row, column + chunk * CHUNK], arrived.index(place), gate_places.index(place))
    fetch(up, [row, column + chunk * CHUNK], arrived.index(place), up_places.index(place))


@gluon.jit
def finish_chunk(results, before, places, row, column, chunk: gl.constexpr, PART: gl.constexpr):
    """Compute and store this chunk of dgate, dup and hidden, [ROWS, CHUNK] each."""
    dgate, dup, hidden = results
    gate_places, up_places, hidden_places, kept_places, arrived = places
    place = PART * PLACES + chunk % PLACES
    gate_place, up_place, hidden_place = gate_places.index(place), up_places.index(place), hidden_places.index(PART)
    if chunk < CHUNKS - KEPT:
        dh = before[chunk]
    else:
        kept_place = kept_places.index(PART * KEPT + chunk - (CHUNKS - KEPT))
        dh = paired(kept_place).load(before[0].type.layout)
    mbarrier.wait(arrived.index(place), chunk // PLACES % 2)
    # dh, gate, up and their gradients are [ROWS, CHUNK / 2] pairs.
    of_gate, of_up, of_hidden = gradients(
        dh, paired(gate_place).load(dh.type.layout), paired(up_place).load(dh.type.layout), gate_places.dtype
    )
    paired(gate_place).store(of_gate)
    paired(up_place).store(of_up)
    paired(hidden_place).store(of_hidden)
    fence_async_shared()
    corner = [row, column + chunk * CHUNK]
    put(dgate, corner, gate_place)
    put(dup, corner, up_place)
    put(hidden, corner, hidden_place)


@gluon.jit
def gradients(dh, gate, up, DTYPE: gl.constexpr):
    """Return the gradients of gate and up, and silu(gate) · up, of pairs and in pairs: [ROWS, CHUNK / 2] all."""
    dh_even, dh_odd = of_pair(dh, DTYPE)
    gate_even, gate_odd = of_pair(gate, DTYPE)
    up_even, up_odd = of_pair(up, DTYPE)
    dgate_even, dup_even, hidden_even = gradients_of_one(dh_even, gate_even, up_even)
    dgate_odd, dup_odd, hidden_odd = gradients_of_one(dh_odd, gate_odd, up_odd)
    return (
        rounded_pair(dgate_even, dgate_odd, DTYPE),
        rounded_pair(dup_even, dup_odd, DTYPE),
        rounded_pair(hidden_even, hidden_odd, DTYPE),
    )


@gluon.jit
def gradients_of_one(dh, gate, up):
    """Return the gradients of gate and up, and silu(gate) · up, in float32: [ROWS, CHUNK / 2] all."""
    opening = opened(gate)
    silu = gate * opening
    slope = opening + silu * (1 - opening)
    return dh * up * slope, dh * silu, silu * up


def plan_hopper_backward(
    plan: Plan, dy: Operand, weight: Operand, gate: Operand, up: Operand
) -> tuple[Operand, Operand, Operand]:
    """Put the kernel on the plan; return dgate, dup and hidden."""
    (n_rows, depth), (_, n_columns) = dy.shape, weight.shape
    dgate, dup, hidden = (plan.empty((n_rows, n_columns), dy.dtype) for _ in range(3))
    config = plan.choose(GatedConfig(), "hopper", bucket(n_rows), bucket(n_columns), bucket(depth), dy.dtype)
    chunk = int(ROWS.value), int(CHUNK.value)
    plan.launch(
        gated_backward_hopper_kernel, config.grid(plan, n_rows, n_columns), config,
        dy=dy.gluon_descriptor((int(GROUPS.value) * int(ROWS.value), int(DEPTH.value))),
        weight=weight.gluon_descriptor((int(DEPTH.value), int(COLUMNS.value))),
        gate=gate.gluon_descriptor(chunk), up=up.gluon_descriptor(chunk),
        dgate=dgate.gluon_descriptor(chunk), dup=dup.gluon_descriptor(chunk), hidden=hidden.gluon_descriptor(chunk),
        n_rows=n_rows, n_columns=n_columns, depth=depth,
    )  # fmt: skip
    return dgate, dup, hidden
