"""Windows that slide over images: their numbers, checks of arguments, memory formats.

Images are [N, C, H, W], or [C, H, W] for a single one, in any strides. Results have PyTorch's memory format: channels
last if the input has channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Layout

Pair = tuple[int, int]  # for the height and for the width
Sides = int | list[int] | tuple[int, ...]  # as PyTorch takes them: one for both, or two


@dataclass(frozen=True)
class Window:
    """A window: its size, its stride, the padding before and after the image, and its dilation."""

    kernel: Pair
    stride: Pair
    padding: Pair
    padding_after: Pair
    dilation: Pair

    @staticmethod
    def of(numbers: Sequence[int]) -> Window:
        """Return the window that `numbers` describes."""
        return Window(*zip(numbers[::2], numbers[1::2], strict=True))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The window as a list of numbers, which a torch operator can take."""
        return (*self.kernel, *self.stride, *self.padding, *self.padding_after, *self.dilation)

    @property
    def spans(self) -> Pair:
        """Rows and columns from a window's first element to its last, both included."""
        (down, across), (height, width) = self.dilation, self.kernel
        return down * (height - 1) + 1, across * (width - 1) + 1

    def counts(self, height: int, width: int, *, ceil_mode: bool = False) -> Pair:
        """Return how many windows an image has. With `ceil_mode` the last may end, but not start, after the padding."""
        down, across = (
            self._count(size, side, ceil_mode=ceil_mode) for side, size in enumerate((height, width))
        )  # fmt: skip
        return down, across

    def _count(self, size: int, side: int, *, ceil_mode: bool) -> int:
        stride, before = self.stride[side], self.padding[side]
        free = size + before + self.padding_after[side] - self.spans[side]
        count = (free + (stride - 1 if ceil_mode else 0)) // stride + 1
        if ceil_mode and (count - 1) * stride >= size + before:
            count -= 1
        return count

    def around(self) -> Pair:
        """Return how many windows can contain an element, down and across."""
        return triton.cdiv(self.spans[0], self.stride[0]), triton.cdiv(self.spans[1], self.stride[1])

    def constants(self) -> dict[str, Pair]:
        """Return the kernel's compile-time arguments."""
        return {
            "KERNEL": self.kernel, "STRIDE": self.stride, "PADDING": self.padding, "DILATION": self.dilation
        }  # fmt: skip

    def overhang(self, image: Sequence[int], counts: Sequence[int]) -> Pair:
        """Return how far the last windows down and across reach past the end of an image of this height and width."""
        down, across = (
            max((count - 1) * stride - before + span - size, 0)
            for count, stride, before, span, size in zip(
                counts, self.stride, self.padding, self.spans, image, strict=True
            )
        )
        return down, across


def pair(value: Sides) -> Pair:
    return (value[0], value[-1]) if isinstance(value, Sequence) else (value, value)


def numbers_of(window_of: Callable[..., Window]) -> Callable[..., tuple[int, ...]]:
    """Return a cached function from arguments to a window's numbers: every call of an operator needs them."""
    remembered = lru_cache(maxsize=1024)(lambda *arguments: window_of(*arguments).numbers)

    def numbers(*arguments: Any) -> tuple[int, ...]:
        if not torch.compiler.is_compiling():
            try:
                return remembered(*arguments)
            except TypeError:  # lists and symbolic numbers are not hashable
                pass
        return window_of(*arguments).numbers

    return numbers


def require_images(operator: str, name: str, x: Tensor) -> None:
    if x.ndim not in (3, 4):
        raise ValueError(
            f"{operator}: {name} has {x.ndim} dimensions (shape {tuple(x.shape)}), but must have 4, or 3 for one image"
        )
    for what, size in zip(("channels", "rows", "columns"), x.shape[-3:], strict=True):
        if size == 0:
            raise ValueError(f"{operator}: {name} has no {what} (shape {tuple(x.shape)}), but must have at least one")


def is_whole(value: object) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def require_pair(operator: str, name: str, value: Any, *, at_least: int) -> None:
    """Check that a value is one whole number or two, for height and width."""
    if isinstance(value, str) or not (is_whole(value) or isinstance(value, Sequence)):
        raise TypeError(f"{operator}: {name} is a {type(value).__name__}, but must be a whole number or two of them")
    numbers = value if isinstance(value, Sequence) else (value,)
    if len(numbers) not in (1, 2):
        raise ValueError(f"{operator}: {name} has {len(numbers)} numbers, but must have one or two")
    for number in numbers:
        if not is_whole(number):
            raise TypeError(f"{operator}: {name} holds a {type(number).__name__}, but must hold whole numbers")
        if number < at_least:
            raise ValueError(f"{operator}: {name} is {value}, but must be at least {at_least}")


def require_little_padding(operator: str, window: Window) -> None:
    """Check that every window has an element inside the image."""
    for padding, span in zip(window.padding, window.spans, strict=True):
        if 2 * padding > span:
            raise ValueError(
                f"{operator}: padding is {padding}, but must be at most half of what a window covers, which is {span}"
            )


def require_windows(operator: str, x: Tensor, window: Window, *, ceil_mode: bool = False) -> None:
    """Check that at least one window fits into x."""
    counts = window.counts(x.shape[-2], x.shape[-1], ceil_mode=ceil_mode)
    for side, what in enumerate(("rows", "columns")):
        size = x.shape[-2 + side]
        if counts[side] < 1:
            padded = size + window.padding[side] + window.padding_after[side]
            raise ValueError(
                f"{operator}: a window covers {window.spans[side]} {what}, but x has {size}, with padding {padded}"
            )


def lies_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether PyTorch treats a tensor of this shape and strides as channels last, and lays out results so."""
    if len(shape) != 4 or strides[1] == 0:
        return False
    least = 0
    for dimension in (1, 3, 2, 0):
        if shape[dimension] == 0 or strides[dimension] < least:
            return False
        if dimension == 0 and least == strides[1]:  # one pixel per image: both formats are the same
            return False
        least = strides[dimension] * max(shape[dimension], 1)
    return True


def empty_images(like: Tensor, shape: Sequence[int], dtype: torch.dtype, *, channels_last: bool) -> Tensor:
    """Return memory for images on the device of `like`; a single image has channels first."""
    layout = torch.channels_last if channels_last and len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=layout)


def plan_empty_images(plan: Plan, shape: Sequence[int], dtype: torch.dtype, *, channels_last: bool) -> Operand:
    """Return memory for images on a plan."""
    look = empty_images(torch.empty(0, device="meta"), shape, dtype, channels_last=channels_last)
    return plan.empty_like(Operand(-1, tuple(shape), look.stride(), dtype))


def as_images(operand: Operand) -> Operand:
    """Return an operand as [N, C, H, W]; a single image may lack N."""
    if len(operand.shape) == 4:
        return operand
    whole = operand.shape[0] * operand.strides[0]
    return operand.seen_as((1, *operand.shape), (whole, *operand.strides))


def images_of(case: Case, dtype: torch.dtype, device: str, layout: Layout, channels: int | None = None) -> Tensor:
    """Return random images of a case's sizes, with channels last if the case's name says so."""
    channels = case.channels if channels is None else channels
    if case.name.endswith("channels-last"):
        images = torch.randn(case.batch, case.height, case.width, channels, dtype=dtype, device=device)
        return layout(images).permute(0, 3, 1, 2)
    return layout(torch.randn(case.batch, channels, case.height, case.width, dtype=dtype, device=device))
