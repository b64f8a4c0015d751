"""Pooling backward, of maxima and of means.

The kernel gathers: each input element adds up the gradients of the few windows that contain it, in the same order at
every run. Windows are STRIDE apart, so elements STRIDE apart have the same place in their windows. A program goes
through cells of STRIDE rows and columns, one element of each cell after the other. Which windows contain an element is
known at compile time: for 3 × 3 windows of stride 2, nine windows for four elements.

Tiles are [OUTER, INNER], see `tiles.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.images.pooling import constant_divisor, elements_counted
from tilesmith.ops.device.images.tiles import (
    MOST_UNROLLED,
    Cells,
    ImageTiles,
    image_offsets,
    store_cells,
    tile_of_images,
    window_around,
)
from tilesmith.ops.device.images.windows import Window
from tilesmith.ops.runtime.plan import Operand, Plan


class PooledGradients(NamedTuple):
    """The gradients of the pooled images, and the positions of maxima."""

    dy_ptr: Any
    positions_ptr: Any
    dy_strides: Any
    positions_strides: Any
    windows_down: Any
    windows_across: Any


@triton.jit
def add_window(
    dx, pooled, cells, p, q, tap, inside, WINDOW: tl.constexpr, REDUCTION: tl.constexpr, COMPUTE: tl.constexpr
):  # fmt: skip
    """Return dx plus the gradient from window (p, q), where the window exists and the element is its number `tap`.

    WINDOW is (KERNEL, STRIDE, PADDING, DILATION), REDUCTION is (OF_MAXIMA, COUNT_PADDING, DIVISOR).
    """
    OF_MAXIMA: tl.constexpr = REDUCTION[0]
    DIVISOR: tl.constexpr = REDUCTION[2]
    image, channel = cells.image, cells.channel
    dy_pointers = pooled.dy_ptr + image_offsets(image, channel, p, q, pooled.dy_strides)
    if OF_MAXIMA:
        position_pointers = pooled.positions_ptr + image_offsets(image, channel, p, q, pooled.positions_strides)
        inside = inside & (tl.load(position_pointers, mask=inside, other=0) == tap)  # [OUTER, INNER]
    dy = tl.load(dy_pointers, mask=inside, other=0.0).to(COMPUTE)  # [OUTER, INNER]
    if not OF_MAXIMA and DIVISOR == 0:
        counted = elements_counted(p, q, cells.height, cells.width, WINDOW[0], WINDOW[1], WINDOW[2], REDUCTION[1])
        dy = tl.where(inside, dy / counted.to(COMPUTE), 0.0)
    return dx + dy


@triton.jit
def gradient_in_cells(
    pooled, cells,
    BELOW: tl.constexpr, BESIDE: tl.constexpr, WINDOW: tl.constexpr, AROUND: tl.constexpr, REDUCTION: tl.constexpr,
    UNROLLED: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Return the gradient of one element of each cell: the one BELOW and BESIDE its first one."""
    KERNEL: tl.constexpr = WINDOW[0]
    STRIDE: tl.constexpr = WINDOW[1]
    PADDING: tl.constexpr = WINDOW[2]
    DILATION: tl.constexpr = WINDOW[3]
    OF_MAXIMA: tl.constexpr = REDUCTION[0]
    DIVISOR: tl.constexpr = REDUCTION[2]
    row, column, reads = cells.row, cells.column, cells.mask
    windows_down, windows_across = pooled.windows_down, pooled.windows_across
    dx = tl.zeros(reads.shape, COMPUTE)  # [OUTER, INNER]
    if UNROLLED:
        TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
        for tap in tl.static_range(TAPS):
            # If a window has the element as its number `tap`, it begins this far from the cell's own window.
            if (BELOW + PADDING[0] - tap // KERNEL[1] * DILATION[0]) % STRIDE[0] == 0:  # noqa: SIM102
                if (BESIDE + PADDING[1] - tap % KERNEL[1] * DILATION[1]) % STRIDE[1] == 0:
                    p = row + (BELOW + PADDING[0] - tap // KERNEL[1] * DILATION[0]) // STRIDE[0]
                    q = column + (BESIDE + PADDING[1] - tap % KERNEL[1] * DILATION[1]) // STRIDE[1]
                    inside = reads & (p >= 0) & (p < windows_down) & (q >= 0) & (q < windows_across)
                    dx = add_window(dx, pooled, cells, p, q, tap, inside, WINDOW, REDUCTION, COMPUTE)
    else:
        for number in range(AROUND[0] * AROUND[1]):
            p, q, tap, inside = window_around(
                row, column, number, windows_down, windows_across, KERNEL, STRIDE, PADDING, DILATION, AROUND[1]
            )
            dx = add_window(dx, pooled, cells, p, q, tap, reads & inside, WINDOW, REDUCTION, COMPUTE)
    if not OF_MAXIMA and DIVISOR != 0:
        dx = dx / DIVISOR
    return dx


@triton.jit(do_not_specialize=["n_planes"])
def pooling_backward_kernel(
    dy_ptr, positions_ptr, dx_ptr, dy_strides, positions_strides, dx_strides, n_planes, sizes, height, width,
    windows_down, windows_across,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, AROUND: tl.constexpr,
    CELL: tl.constexpr, OF_MAXIMA: tl.constexpr, COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
    CHANNELS_INNER: tl.constexpr, INDEX: tl.constexpr, COMPUTE: tl.constexpr, UNROLLED: tl.constexpr,
    PLANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    image, channel, row, column, reads, writes = tile_of_images(
        n_planes, sizes, CHANNELS_INNER, INDEX, PLANES, ROWS, COLUMNS, CHANNELS
    )
    pooled = PooledGradients(dy_ptr, positions_ptr, dy_strides, positions_strides, windows_down, windows_across)
    cells = Cells(image, channel, row, column, reads, height, width)
    written = Cells(image, channel, row, column, writes, height, width)
    WINDOW: tl.constexpr = (KERNEL, STRIDE, PADDING, DILATION)
    REDUCTION: tl.constexpr = (OF_MAXIMA, COUNT_PADDING, DIVISOR)
    CELL_ROWS: tl.constexpr = CELL[0]
    CELL_COLUMNS: tl.constexpr = CELL[1]
    PAIRED: tl.constexpr = CELL_COLUMNS == 2 and not CHANNELS_INNER
    STEP: tl.constexpr = 2 if PAIRED else 1
    for below in tl.static_range(CELL_ROWS):
        for beside in tl.static_range(0, CELL_COLUMNS, STEP):
            first = gradient_in_cells(
                pooled, cells, below, beside, WINDOW, AROUND, REDUCTION, UNROLLED, COMPUTE
            )  # fmt: skip
            second = first  # [OUTER, INNER] each
            if PAIRED:
                second = gradient_in_cells(
                    pooled, cells, below, beside + 1, WINDOW, AROUND, REDUCTION, UNROLLED, COMPUTE
                )  # fmt: skip
            store_cells(first, second, dx_ptr, dx_strides, written, below, beside, CELL, COLUMNS, PAIRED)


def plan_pooling_backward(
    plan: Plan, dy: Operand, positions: Operand | None, dx: Operand, window: Window, count_padding: bool = True,
    divisor: int = 0,
) -> None:  # fmt: skip
    """Plan the gradient of maxima at these positions; without positions, the gradient of means."""
    height, width = dx.shape[-2:]
    unrolled = math.prod(window.kernel) <= MOST_UNROLLED
    cell = window.stride if unrolled else (1, 1)
    others = (dy,) if positions is None else (dy, positions)
    tiles = ImageTiles(dx, *others, cell=cell)
    default = tiles.config()
    filling = tiles.filling(default, plan.multiprocessors)
    config = plan.choose(filling, *tiles.bucket(), *(("few planes",) if filling != default else ()))
    dx_strides, dy_strides, *rest = tiles.strides
    plan.launch(
        pooling_backward_kernel, tiles.grid(config), config,
        dy_ptr=dy, positions_ptr=positions, dx_ptr=dx, dx_strides=dx_strides, dy_strides=dy_strides,
        positions_strides=rest[0] if rest else None, **tiles.arguments(), height=height, width=width,
        windows_down=dy.shape[-2], windows_across=dy.shape[-1], **window.constants(), AROUND=window.around(),
        CELL=cell, OF_MAXIMA=positions is not None, COUNT_PADDING=count_padding,
        DIVISOR=divisor or constant_divisor(window, (height, width), dy.shape[-2:], count_padding),
        UNROLLED=unrolled, COMPUTE=compute_dtype(dy.dtype),
    )  # fmt: skip
