"""What pooling by maximum and by mean share: how PyTorch reads their arguments, what they cost, and the way back.

The gradient is gathered: each input element looks into the few windows that it is part of, and adds up what comes from
there, in the same order at every run. Windows are STRIDE apart, so elements STRIDE apart are number r, s of their
windows alike: a program goes through cells of that size, one element of each after the other, and knows for each which
windows to ask before it runs. Of the 3 × 3 windows a stride of two apart that is 9 questions for four elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.images.tiles import (
    MOST_UNROLLED,
    ImageTiles,
    image_offsets,
    store_cells,
    tile_of_images,
    window_around,
)
from tilesmith.ops.device.images.windows import (
    Sides,
    Window,
    numbers_of,
    pair,
    require_images,
    require_little_padding,
    require_pair,
    require_windows,
)
from tilesmith.ops.runtime.arguments import require_flag
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Work


@triton.jit
def extent(place, size, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COUNT_PADDING: tl.constexpr):
    """How many elements of a window count, along one side: what hangs over the padding's end never does."""
    start = place * STRIDE - PADDING
    end = tl.minimum(start + KERNEL, size + PADDING)
    if not COUNT_PADDING:
        start, end = tl.maximum(start, 0), tl.minimum(end, size)
    return end - start


@triton.jit
def elements_counted(
    p, q, height, width, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COUNT_PADDING: tl.constexpr
):
    """How many elements of window (p, q) its mean is over."""
    rows = extent(p, height, KERNEL[0], STRIDE[0], PADDING[0], COUNT_PADDING)
    return rows * extent(q, width, KERNEL[1], STRIDE[1], PADDING[1], COUNT_PADDING)


@triton.jit
def with_window(
    dx, dy_ptr, positions_ptr, dy_strides, positions_strides, image, channel, p, q, tap, inside, height, width,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, OF_MAXIMA: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """dx with what comes from window (p, q), where that exists and the element is its number `tap`."""
    dy_pointers = dy_ptr + image_offsets(image, channel, p, q, dy_strides)
    if OF_MAXIMA:
        position_pointers = positions_ptr + image_offsets(image, channel, p, q, positions_strides)
        inside = inside & (tl.load(position_pointers, mask=inside, other=0) == tap)
    share = tl.load(dy_pointers, mask=inside, other=0.0).to(COMPUTE)
    if not OF_MAXIMA and DIVISOR == 0:
        counted = elements_counted(p, q, height, width, KERNEL, STRIDE, PADDING, COUNT_PADDING)
        share = tl.where(inside, share / counted.to(COMPUTE), 0.0)
    return dx + share


@triton.jit
def gradient_in_cells(
    dy_ptr, positions_ptr, dy_strides, positions_strides, image, channel, row, column, reads, height, width,
    windows_down, windows_across,
    BELOW: tl.constexpr, BESIDE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    DILATION: tl.constexpr, AROUND: tl.constexpr, OF_MAXIMA: tl.constexpr, COUNT_PADDING: tl.constexpr,
    DIVISOR: tl.constexpr, UNROLLED: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """What comes to one element of each cell: that BELOW and BESIDE its first one."""
    dx = tl.zeros(reads.shape, COMPUTE)
    if UNROLLED:
        TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
        for tap in tl.static_range(TAPS):
            # The window of which the element is number `tap` begins so far from the cell's own, if one begins there.
            if (BELOW + PADDING[0] - tap // KERNEL[1] * DILATION[0]) % STRIDE[0] == 0:  # noqa: SIM102
                if (BESIDE + PADDING[1] - tap % KERNEL[1] * DILATION[1]) % STRIDE[1] == 0:
                    p = row + (BELOW + PADDING[0] - tap // KERNEL[1] * DILATION[0]) // STRIDE[0]
                    q = column + (BESIDE + PADDING[1] - tap % KERNEL[1] * DILATION[1]) // STRIDE[1]
                    inside = reads & (p >= 0) & (p < windows_down) & (q >= 0) & (q < windows_across)
                    dx = with_window(
                        dx, dy_ptr, positions_ptr, dy_strides, positions_strides, image, channel, p, q, tap, inside,
                        height, width, KERNEL, STRIDE, PADDING, OF_MAXIMA, COUNT_PADDING, DIVISOR, COMPUTE,
                    )  # fmt: skip
    else:
        for number in range(AROUND[0] * AROUND[1]):
            p, q, tap, inside = window_around(
                row, column, number, windows_down, windows_across, KERNEL, STRIDE, PADDING, DILATION, AROUND[1]
            )
            dx = with_window(
                dx, dy_ptr, positions_ptr, dy_strides, positions_strides, image, channel, p, q, tap, reads & inside,
                height, width, KERNEL, STRIDE, PADDING, OF_MAXIMA, COUNT_PADDING, DIVISOR, COMPUTE,
            )  # fmt: skip
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
    CELL_ROWS: tl.constexpr = CELL[0]
    CELL_COLUMNS: tl.constexpr = CELL[1]
    PAIRED: tl.constexpr = CELL_COLUMNS == 2 and not CHANNELS_INNER
    STEP: tl.constexpr = 2 if PAIRED else 1
    for below in tl.static_range(CELL_ROWS):
        for beside in tl.static_range(0, CELL_COLUMNS, STEP):
            first = gradient_in_cells(
                dy_ptr, positions_ptr, dy_strides, positions_strides, image, channel, row, column, reads, height, width,
                windows_down, windows_across, below, beside, KERNEL, STRIDE, PADDING, DILATION, AROUND, OF_MAXIMA,
                COUNT_PADDING, DIVISOR, UNROLLED, COMPUTE,
            )  # fmt: skip
            second = first
            if PAIRED:
                second = gradient_in_cells(
                    dy_ptr, positions_ptr, dy_strides, positions_strides, image, channel, row, column, reads, height,
                    width, windows_down, windows_across, below, beside + 1, KERNEL, STRIDE, PADDING, DILATION, AROUND,
                    OF_MAXIMA, COUNT_PADDING, DIVISOR, UNROLLED, COMPUTE,
                )  # fmt: skip
            store_cells(
                first, second, dx_ptr, dx_strides, image, channel, row, column, writes, height, width,
                below, beside, CELL, COLUMNS, PAIRED,
            )  # fmt: skip


def plan_pooling_backward(
    plan: Plan, dy: Operand, positions: Operand | None, dx: Operand, window: Window, count_padding: bool = True,
    divisor: int = 0,
) -> None:  # fmt: skip
    """Put on the plan the gradient of maxima at these positions; without them, that of means."""
    height, width = dx.shape[-2:]
    unrolled = math.prod(window.kernel) <= MOST_UNROLLED
    cell = window.stride if unrolled else (1, 1)
    others = (dy,) if positions is None else (dy, positions)
    tiles = ImageTiles(dx, *others, cell=cell)
    config = plan.choose(tiles.config(), *tiles.bucket())
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


def constant_divisor(window: Window, image: Sequence[int], counts: Sequence[int], count_padding: bool) -> int:
    """By what every mean is divided, where that is always the same; else zero."""
    within = all(over <= after for over, after in zip(window.overhang(image, counts), window.padding, strict=True))
    unpadded = window.padding == (0, 0) and window.overhang(image, counts) == (0, 0)
    return math.prod(window.kernel) if unpadded or (count_padding and within) else 0


def pooling_window(kernel_size: Sides, stride: Sides | None = None, padding: Sides = 0, dilation: Sides = 1) -> Window:
    """As PyTorch reads its arguments: without a stride, windows touch."""
    kernel, around = pair(kernel_size), pair(padding)
    return Window(kernel, kernel if stride is None else pair(stride), around, around, pair(dilation))


pooling_numbers = numbers_of(pooling_window)


def require_pooling(
    operator: str, x: Tensor, kernel_size: Any, stride: Any, padding: Any, ceil_mode: Any, dilation: Any = 1
) -> None:
    """What both take, as PyTorch does."""
    require_images(operator, "x", x)
    require_pair(operator, "kernel_size", kernel_size, at_least=1)
    if stride is not None:
        require_pair(operator, "stride", stride, at_least=1)
    require_pair(operator, "padding", padding, at_least=0)
    require_pair(operator, "dilation", dilation, at_least=1)
    require_flag(operator, "ceil_mode", ceil_mode)
    window = pooling_window(kernel_size, stride, padding, dilation)
    require_little_padding(operator, window)
    require_windows(operator, x, window, ceil_mode=ceil_mode)


def pooling_shape(x: Sequence[int], window: Window, *, ceil_mode: bool) -> tuple[int, ...]:
    """What comes out of images of this shape: one element for each window."""
    return (*x[:-2], *window.counts(x[-2], x[-1], ceil_mode=ceil_mode))


def pooling_work(case: Case, dtype: torch.dtype, window: Window, *, ceil_mode: bool) -> Cost:
    """The least that pooling must do: every element of the images and of the result moved once, each way."""
    planes, height, width = case.batch * case.channels, case.height, case.width
    outputs = planes * math.prod(window.counts(height, width, ceil_mode=ceil_mode))
    moved = (planes * height * width + outputs) * dtype.itemsize
    taps = outputs * math.prod(window.kernel)
    return Cost(forward=Work(bytes=moved, flops=taps), backward=Work(bytes=moved, flops=taps))
