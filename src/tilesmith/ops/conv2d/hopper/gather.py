"""The implicit GEMM of forward and input gradient on Hopper, in half precision: same computation as `../boxes.py`.

Programs are persistent. One producer warp loads boxes of the source and blocks of the weight by TMA into a ring of
STAGES slots in shared memory; TMA fills the padding and the channels past the end with zeros. Two consumer warpgroups
multiply half of the positions each, and store their results by TMA while the producer loads the next tile.

A window that moves by two or more reads every second row: the descriptor then has rows and columns in groups of the
stride (`boxes.py`), so that a box is again a box.
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

from tilesmith.ops.conv2d.hopper.boxes import Boxes, group_of, half_of_box, place_of_box
from tilesmith.ops.conv2d.pointers import as_walk
from tilesmith.ops.device.hopper import FETCHING_REGISTERS, GROUP_WARPS, barriers
from tilesmith.toolchain.gluon import fetch, put

GROUPS = gl.constexpr(2)  # consumer warpgroups


class Memory(NamedTuple):
    """The ring and the buffers of results in shared memory, and the mbarriers that signal a slot loaded or free."""

    source: Any  # [STAGES, box, DEPTH]
    weight: Any  # [STAGES, COLUMNS, 1, DEPTH], or [STAGES, DEPTH, 1, COLUMNS]
    results: Any  # [GROUPS, half a box, COLUMNS]
    ready: Any
    free: Any


class Sizes(NamedTuple):
    """What a program computes: tiles of a box of positions by COLUMNS outputs."""

    boxes: Boxes
    n_tiles: Any
    column_tiles: Any
    outputs: Any
    channels: Any
    down: Any  # Walk
    across: Any  # Walk
    taps_in_row: Any  # of the whole weight
    source_column: Any  # elements from one column of the source to the next


class Form(NamedTuple):
    """The compile-time constants of the kernel."""

    POSITIONS: int
    COLUMNS: int
    DEPTH: int
    STAGES: int
    BOX_ROWS: int
    BOX_COLUMNS: int
    ALONG: bool


@gluon.constexpr_function
def form(positions, columns, depth, stages, box_rows, box_columns, along):
    return Form(positions, columns, depth, stages, box_rows, box_columns, along)


@gluon.jit(do_not_specialize=["n_tiles", "boxes", "column_tiles", "outputs", "channels", "down", "across",
                              "taps_in_row", "source_column", "result_group"])  # fmt: skip
def conv2d_hopper_gather_kernel(
    source, weight, result, bias_ptr, n_tiles, boxes, column_tiles, outputs, channels, down, across, taps_in_row,
    source_column, result_group,
    POSITIONS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, BOX_ROWS: gl.constexpr,
    BOX_COLUMNS: gl.constexpr, ALONG: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute tiles of POSITIONS × COLUMNS. source, weight and result are descriptors; `boxes.py` says of what shape.

    `boxes`: how many lie across and down. `result_group`: the place of the results in their groups of rows, and their
    first element in groups of columns. ALONG: the channels of the weight that are summed are contiguous.
    """
    FORM: gl.constexpr = form(POSITIONS, COLUMNS, DEPTH, STAGES, BOX_ROWS, BOX_COLUMNS, ALONG)
    memory = Memory(
        gl.allocate_shared_memory(
            source.dtype,
            [STAGES] + source.block_shape,  # noqa: RUF005  # Triton does not unpack
            source.layout,
        ),
        gl.allocate_shared_memory(
            source.dtype,
            [STAGES] + weight.block_shape,  # noqa: RUF005  # Triton does not unpack
            weight.layout,
        ),
        gl.allocate_shared_memory(
            source.dtype,
            [GROUPS] + result.block_shape,  # noqa: RUF005  # Triton does not unpack
            result.layout,
        ),
        barriers(STAGES, 1),
        barriers(STAGES, GROUPS),
    )
    fence_async_shared()
    sizes = Sizes(
        Boxes(boxes[0], boxes[1]),
        n_tiles,
        column_tiles,
        outputs,
        channels,
        as_walk(down),
        as_walk(across),
        taps_in_row,
        source_column,
    )
    gl.warp_specialize(
        [
            (multiply, (result, bias_ptr, memory, sizes, result_group, FORM, 0)),
            (multiply, (result, bias_ptr, memory, sizes, result_group, FORM, 1)),
            (fetch_steps, (source, weight, memory, sizes, FORM)),
        ],
        [GROUP_WARPS, 1],
        [REGISTERS, FETCHING_REGISTERS],
    )


@gluon.jit
def fetch_steps(source, weight, memory, sizes, FORM: gl.constexpr):
    """Run the producer warp: for each block of channels all taps, whose boxes overlap in the L2 cache."""
    COLUMNS: gl.constexpr = FORM.COLUMNS
    DEPTH: gl.constexpr = FORM.DEPTH
    STAGES: gl.constexpr = FORM.STAGES
    BYTES: gl.constexpr = (FORM.POSITIONS + COLUMNS) * DEPTH * 2
    down, across = sizes.down, sizes.across
    number = 0
    for tile in range(gl.program_id(0), sizes.n_tiles, gl.num_programs(0)):
        image, row, column = place_of_box(tile // sizes.column_tiles, sizes.boxes, FORM)
        output = tile % sizes.column_tiles * COLUMNS
        for channel in range(0, sizes.channels, DEPTH):
            for tap_down in range(down.taps):
                row_group, row_place = group_of(down.start + tap_down * down.tap_step, down.step)
                tap_row = (down.first + tap_down * down.weight_step) * sizes.taps_in_row
                for tap_across in range(across.taps):
                    column_group, column_place = group_of(across.start + tap_across * across.tap_step, across.step)
                    tap = tap_row + across.first + tap_across * across.weight_step
                    slot = number % STAGES
                    # Wait until the step that used this slot is done; the first round finds every slot free.
                    mbarrier.wait(memory.free.index(slot), (number // STAGES + 1) % 2)
                    ready = memory.ready.index(slot)
                    mbarrier.expect(ready, BYTES)
                    place = column_place * sizes.source_column + channel
                    corner = [image, row + row_group, row_place, column + column_group, place]
                    fetch(source, corner, ready, memory.source.index(slot))
                    weight_corner = [output, tap, channel] if FORM.ALONG else [channel, tap, output]
                    fetch(weight, weight_corner, ready, memory.weight.index(slot))
                    number += 1


@gluon.jit
def multiply(result, bias_ptr, memory, sizes, result_group, FORM: gl.constexpr, PART: gl.constexpr):
    """Run a consumer warpgroup: half of each tile's positions."""
    POSITIONS: gl.constexpr = FORM.POSITIONS
    COLUMNS: gl.constexpr = FORM.COLUMNS
    DEPTH: gl.constexpr = FORM.DEPTH
    STAGES: gl.constexpr = FORM.STAGES
    ROWS: gl.constexpr = POSITIONS // GROUPS
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, COLUMNS, 16])
    steps = (sizes.channels + DEPTH - 1) // DEPTH * sizes.down.taps * sizes.across.taps
    number = 0
    for tile in range(gl.program_id(0), sizes.n_tiles, gl.num_programs(0)):
        first_output = tile % sizes.column_tiles * COLUMNS
        total = gl.zeros([ROWS, COLUMNS], gl.float32, SUMS)  # [ROWS, COLUMNS]
        if bias_ptr is not None:
            output = first_output + gl.arange(0, COLUMNS, gl.SliceLayout(0, SUMS))  # [COLUMNS]
            bias = gl.load(bias_ptr + output, mask=output < sizes.outputs, other=0.0)  # [COLUMNS]
            total += bias.to(gl.float32)[None, :]
        for step in range(steps):
            slot = number % STAGES
            mbarrier.wait(memory.ready.index(slot), number // STAGES % 2)
            windows = memory.source.index(slot).reshape([POSITIONS, DEPTH]).slice(PART * ROWS, ROWS)
            weights = memory.weight.index(slot)  # windows are [ROWS, DEPTH], in shared memory
            if FORM.ALONG:  # weights are [DEPTH, COLUMNS], in shared memory, either way
                weights = weights.reshape([COLUMNS, DEPTH]).permute([1, 0])
            else:
                weights = weights.reshape([DEPTH, COLUMNS])
            total = warpgroup_mma(windows, weights, total, is_async=True)
            total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(memory.free.index((number + STAGES - 1) % STAGES), count=1, pred=step > 0)
            number += 1
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(memory.free.index((number + STAGES - 1) % STAGES), count=1, pred=steps > 0)
        tma.store_wait(0)  # the results of the tile before have left the buffer
        place = memory.results.index(PART)
        place.reshape([ROWS, COLUMNS]).store(total.to(result.dtype))
        fence_async_shared()
        image, row, column = place_of_box(tile // sizes.column_tiles, sizes.boxes, FORM)
        HALF: gl.constexpr = half_of_box(PART, POSITIONS, FORM.BOX_ROWS, FORM.BOX_COLUMNS)
        output = result_group[1] + first_output
        put(result, [image + HALF[0], row + HALF[1], result_group[0], column + HALF[2], output], place)
    tma.store_wait(0)
