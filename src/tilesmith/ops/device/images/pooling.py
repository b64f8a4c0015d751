"""What pooling by maximum and by mean share: their arguments, shapes, divisors and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

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
from tilesmith.spec import Case, Cost, Work


@triton.jit
def extent(place, size, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COUNT_PADDING: tl.constexpr):
    """Return how many elements of a window count along one side: never those after the end of the padding."""
    start = place * STRIDE - PADDING
    end = tl.minimum(start + KERNEL, size + PADDING)
    if not COUNT_PADDING:
        start, end = tl.maximum(start, 0), tl.minimum(end, size)
    return end - start


@triton.jit
def elements_counted(
    p, q, height, width, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COUNT_PADDING: tl.constexpr
):
    """Return how many elements the mean of window (p, q) is over."""
    rows = extent(p, height, KERNEL[0], STRIDE[0], PADDING[0], COUNT_PADDING)
    return rows * extent(q, width, KERNEL[1], STRIDE[1], PADDING[1], COUNT_PADDING)


def constant_divisor(window: Window, image: Sequence[int], counts: Sequence[int], count_padding: bool) -> int:
    """Return the divisor that all means share; zero if windows differ."""
    within = all(over <= after for over, after in zip(window.overhang(image, counts), window.padding, strict=True))
    unpadded = window.padding == (0, 0) and window.overhang(image, counts) == (0, 0)
    return math.prod(window.kernel) if unpadded or (count_padding and within) else 0


def pooling_window(kernel_size: Sides, stride: Sides | None = None, padding: Sides = 0, dilation: Sides = 1) -> Window:
    """Return the window as PyTorch reads its arguments: the stride defaults to the window's size."""
    kernel, around = pair(kernel_size), pair(padding)
    return Window(kernel, kernel if stride is None else pair(stride), around, around, pair(dilation))


pooling_numbers = numbers_of(pooling_window)


def require_pooling(
    operator: str, x: Tensor, kernel_size: Any, stride: Any, padding: Any, ceil_mode: Any, dilation: Any = 1
) -> None:
    """Check the arguments that both pooling operators take."""
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
    """Return the shape of the pooled images: one element per window."""
    return (*x[:-2], *window.counts(x[-2], x[-1], ceil_mode=ceil_mode))


def pooling_work(case: Case, dtype: torch.dtype, window: Window, *, ceil_mode: bool) -> Cost:
    """Return the least work: every element of the images and of the result moves once, each way."""
    planes, height, width = case.batch * case.channels, case.height, case.width
    outputs = planes * math.prod(window.counts(height, width, ceil_mode=ceil_mode))
    moved = (planes * height * width + outputs) * dtype.itemsize
    taps = outputs * math.prod(window.kernel)
    return Cost(forward=Work(bytes=moved, flops=taps), backward=Work(bytes=moved, flops=taps))
