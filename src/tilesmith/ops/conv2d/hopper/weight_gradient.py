"""The weight's gradient on Hopper, in half precision: same computation as `../weight_gradient.py` (read that first).

One step takes a box of positions: as many rows of the output's gradient, [POSITIONS, OUTPUTS], and of the images as
one tap shifts them, [POSITIONS, CHANNELS]. Both come by TMA with zeros past their ends, so neither the padding nor
positions past the end add anything. The tensor cores read the gradient transposed from shared memory.

Of 128 outputs each consumer warpgroup multiplies 64 at every step. With 64 outputs the warpgroups take steps in turn,
and each has a partial sum of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.conv2d.hopper.boxes import Boxes, group_of, place_of_box
from tilesmith.ops.conv2d.pointers import as_walk
from tilesmith.ops.device.hopper import FETCHING_REGISTERS, GROUP_WARPS, barriers
from tilesmith.toolchain.gluon import fetch

GROUPS = gl.constexpr(2)  # consumer warpgroups
ROWS = gl.constexpr(64)  # outputs of a warpgroup


class Memory(NamedTuple):
    """The ring in shared memory, and the mbarriers that signal a slot loaded or free."""

    doutput: Any  # [STAGES, box, OUTPUTS]
    source: Any  # [STAGES, box, CHANNELS]
    ready: Any
    free: Any


class Work(NamedTuple):
    """The work of a program: a block of outputs by channels of one tap, over some boxes of positions."""

    boxes: Boxes
    first_box: Any
    n_boxes: Any
    output: Any
    channel: Any
    down: Any  # Walk
    across: Any  # Walk
    tap_down: Any
    tap_across: Any
    outputs: Any
    channels: Any
    source_column: Any  # elements from one column of the source to the next


class Form(NamedTuple):
    """The compile-time constants of the kernel."""

    POSITIONS: int
    OUTPUTS: int
    CHANNELS: int
    STAGES: int
    BOX_ROWS: int
    BOX_COLUMNS: int


@gluon.constexpr_function
def form(positions, outputs, channels, stages, box_rows, box_columns):
    return Form(positions, outputs, channels, stages, box_rows, box_columns)


@gluon.jit(
    do_not_specialize=["boxes", "n_boxes", "boxes_per_split", "outputs", "channels", "source_column", "down", "across"]
)
def conv2d_hopper_weight_gradient_kernel(
    doutput, source, partials_ptr, boxes, n_boxes, boxes_per_split, outputs, channels, source_column, down,
    across,
    POSITIONS: gl.constexpr, OUTPUTS: gl.constexpr, CHANNELS: gl.constexpr, STAGES: gl.constexpr,
    BOX_ROWS: gl.constexpr, BOX_COLUMNS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute partial sums of one block of the weight. doutput and source are descriptors, as `boxes.py` describes.

    `boxes`: how many lie across and down. The partial sums are [splits, outputs, taps, channels], in single precision
    unless there is only one.
    """
    FORM: gl.constexpr = form(POSITIONS, OUTPUTS, CHANNELS, STAGES, BOX_ROWS, BOX_COLUMNS)
    memory = Memory(
        gl.allocate_shared_memory(
            doutput.dtype,
            [STAGES] + doutput.block_shape,  # noqa: RUF005  # Triton does not unpack
            doutput.layout,
        ),
        gl.allocate_shared_memory(
            source.dtype,
            [STAGES] + source.block_shape,  # noqa: RUF005  # Triton does not unpack
            source.layout,
        ),
        barriers(STAGES, 1),
        barriers(STAGES, OUTPUTS // ROWS),
    )
    fence_async_shared()
    walk_down, walk_across = as_walk(down), as_walk(across)
    block = gl.program_id(0)
    tap_across = block % walk_across.taps
    tap_down = block // walk_across.taps % walk_down.taps
    block = block // walk_across.taps // walk_down.taps
    output_blocks = (outputs + OUTPUTS - 1) // OUTPUTS
    first_box = gl.program_id(1) * boxes_per_split
    work = Work(
        Boxes(boxes[0], boxes[1]), first_box, gl.maximum(gl.minimum(n_boxes - first_box, boxes_per_split), 0),
        block % output_blocks * OUTPUTS, block // output_blocks * CHANNELS,
        walk_down, walk_across, tap_down, tap_across, outputs, channels, source_column,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (multiply, (partials_ptr, memory, work, FORM, 0)),
            (multiply, (partials_ptr, memory, work, FORM, 1)),
            (fetch_boxes, (doutput, source, memory, work, FORM)),
        ],
        [GROUP_WARPS, 1],
        [REGISTERS, FETCHING_REGISTERS],
    )


@gluon.jit
def fetch_boxes(doutput, source, memory, work, FORM: gl.constexpr):
    """Run the producer warp."""
    STAGES: gl.constexpr = FORM.STAGES
    BYTES: gl.constexpr = FORM.POSITIONS * (FORM.OUTPUTS + FORM.CHANNELS) * 2
    down, across = work.down, work.across
    row_group, row_place = group_of(down.start + work.tap_down * down.tap_step, down.step)
    column_group, column_place = group_of(across.start + work.tap_across * across.tap_step, across.step)
    for number in range(work.n_boxes):
        image, row, column = place_of_box(work.first_box + number, work.boxes, FORM)
        slot = number % STAGES
        mbarrier.wait(memory.free.index(slot), (number // STAGES + 1) % 2)
        ready = memory.ready.index(slot)
        mbarrier.expect(ready, BYTES)
        fetch(doutput, [image, row, 0, column, work.output], ready, memory.doutput.index(slot))
        corner = [
            image, row + row_group, row_place, column + column_group, column_place * work.source_column + work.channel
        ]  # fmt: skip
        fetch(source, corner, ready, memory.source.index(slot))


@gluon.jit
def multiply(partials_ptr, memory, work, FORM: gl.constexpr, PART: gl.constexpr):
    """Run a consumer warpgroup: ROWS outputs, at every step or at every second."""
    POSITIONS: gl.constexpr = FORM.POSITIONS
    OUTPUTS: gl.constexpr = FORM.OUTPUTS
    CHANNELS: gl.constexpr = FORM.CHANNELS
    STAGES: gl.constexpr = FORM.STAGES
    TURNS: gl.constexpr = GROUPS * ROWS // OUTPUTS  # 2: every second step
    OFFSET: gl.constexpr = 0 if TURNS == 2 else PART * ROWS
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, CHANNELS, 16])
    total = gl.zeros([ROWS, CHANNELS], gl.float32, SUMS)  # [ROWS, CHANNELS]
    first = PART if TURNS == 2 else 0
    for number in range(first, work.n_boxes, TURNS):
        slot = number % STAGES
        mbarrier.wait(memory.ready.index(slot), number // STAGES % 2)
        gradients = memory.doutput.index(slot).reshape([POSITIONS, OUTPUTS])
        gradients = gradients.slice(OFFSET, ROWS, dim=1).permute([1, 0])  # [ROWS, POSITIONS] in shared memory
        windows = memory.source.index(slot).reshape([POSITIONS, CHANNELS])  # in shared memory
        total = warpgroup_mma(gradients, windows, total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])
        before = memory.free.index((number + STAGES * TURNS - TURNS) % STAGES)
        mbarrier.arrive(before, count=1, pred=number > first)
    total = warpgroup_mma_wait(0, deps=[total])
    split = gl.program_id(1) * TURNS
    if TURNS == 2:
        split += PART
    taps = work.down.taps * work.across.taps
    output = work.output + OFFSET + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))  # [ROWS]
    channel = work.channel + gl.arange(0, CHANNELS, gl.SliceLayout(0, SUMS))  # [CHANNELS]
    row = (gl.cast(split, gl.int64) * work.outputs + output) * taps + work.tap_down * work.across.taps + work.tap_across
    mask = (output < work.outputs)[:, None] & (channel < work.channels)[None, :]
    gl.store(
        partials_ptr + (row * work.channels)[:, None] + channel[None, :],
        total.to(partials_ptr.dtype.element_ty),
        mask=mask,
    )
