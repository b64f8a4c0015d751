"""The sizes of a convolution, of one launch of its GEMM, and copies of its tensors to channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton

from tilesmith.ops.conv2d.pointers import Walk
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.images.windows import Pair, Window
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.transpose import plan_transpose

# Of a group, for a block of channels per tap. Fewer would leave most of a block empty: then taps and channels form one
# long dimension, and a block has several taps.
FEWEST_CHANNELS = 16
MOST_OF_A_CHANNEL = 4  # outputs of a single channel in a depthwise convolution; more are worth a GEMM


@dataclass(frozen=True)
class Problem:
    """A convolution's sizes; channels and outputs are those of one group."""

    batch: int
    channels: int
    outputs: int
    groups: int
    height: int
    width: int
    window: Window

    @staticmethod
    def of(x: Sequence[int], weight: Sequence[int], window: Sequence[int], groups: int) -> Problem:
        """Return the problem for these shapes of images and weight."""
        batch, channels, height, width = (1, *x)[-4:]
        return Problem(batch, channels // groups, weight[0] // groups, groups, height, width, Window.of(window))

    @property
    def counts(self) -> Pair:
        """The result's height and width."""
        return self.window.counts(self.height, self.width)

    @property
    def positions(self) -> int:
        return self.batch * math.prod(self.counts)

    @property
    def depthwise(self) -> bool:
        """Whether each output depends on one channel, and few outputs on each channel: no GEMM."""
        return self.channels == 1 and self.outputs <= MOST_OF_A_CHANNEL

    @property
    def flops(self) -> int:
        return 2 * self.positions * self.outputs * self.groups * self.channels * math.prod(self.window.kernel)


def forward_walk(problem: Problem, side: int) -> Walk:
    """Return the walk of the forward along one side."""
    window = problem.window
    return Walk(window.stride[side], -window.padding[side], window.dilation[side], window.kernel[side], 0, 1)


def backward_walk(problem: Problem, side: int, remainder: int) -> Walk:
    """Return the walk of the input's gradient, of the positions with this remainder modulo the stride."""
    window = problem.window
    stride, dilation, kernel = window.stride[side], window.dilation[side], window.kernel[side]
    shared = math.gcd(stride, dilation)
    reached = remainder + window.padding[side]
    first = next((tap for tap in range(kernel) if (reached - tap * dilation) % stride == 0), kernel)
    every = stride // shared  # from one tap that fits to the next
    start = (reached - first * dilation) // stride
    return Walk(1, start, -(dilation // shared), triton.cdiv(kernel - first, every), first, every)


@dataclass(frozen=True)
class Gather:
    """One launch of the implicit GEMM (`gather.py`). Source, weight and result are [N, C, H, W].

    The weight's strides are those of output, channel, and tap down and across. `result` may be a class of positions:
    every `result_steps`-th row and column of `whole_result`, from the row and column `result_place` on.
    """

    source: Operand
    weight: Operand
    weight_strides: tuple[int, ...]
    weight_group_stride: int
    bias: Operand | None
    result: Operand
    result_start: int
    channels: int
    outputs: int
    groups: int
    down: Walk
    across: Walk
    precision: str
    whole_result: Operand | None = None
    result_steps: Pair = (1, 1)
    result_place: Pair = (0, 0)

    @property
    def few_channels(self) -> bool:
        return self.channels < FEWEST_CHANNELS


def best_box(positions: int, batch: int, height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the box that covers images with the least waste; of equal boxes, the widest."""

    def waste(sides: tuple[int, int]) -> tuple[int, int, int]:
        rows, columns = sides
        images = positions // (rows * columns)
        covered = (
            triton.cdiv(batch, images) * images
            * triton.cdiv(height, rows) * rows
            * triton.cdiv(width, columns) * columns
        )  # fmt: skip
        return covered, -columns, -rows

    powers = [1 << power for power in range(positions.bit_length())]
    return min(((rows, columns) for rows in powers for columns in powers if rows * columns <= positions), key=waste)


class Tiling(NamedTuple):
    """How boxes cover images: the sides of a box, and how many lie side by side, below each other, and in all."""

    images: int
    rows: int
    columns: int
    across: int
    down: int
    boxes: int


def tiling_of(positions: int, batch: int, height: int, width: int) -> Tiling:
    """Return the best boxes of so many positions."""
    rows, columns = best_box(positions, bucket(batch), height, width)
    images = positions // (rows * columns)
    across, down = triton.cdiv(width, columns), triton.cdiv(height, rows)
    return Tiling(images, rows, columns, across, down, triton.cdiv(batch, images) * across * down)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums over elements of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def split_positions(positions: int, block: int, blocks: int, programs: int) -> tuple[int, int]:
    """Return the number of splits of the positions, and the positions of each in whole blocks.

    About `programs` programs then run, if each split computes `blocks` blocks of the result.
    """
    steps = max(triton.cdiv(positions, block), 1)
    splits = min(max(programs // blocks, 1), steps)
    per_split = triton.cdiv(steps, splits)
    return triton.cdiv(steps, per_split), per_split * block


def plan_channels_last(plan: Plan, images: Operand, unit: int = 1) -> Operand:
    """Return images, or a weight, with channels last in memory: a copy unless they are so already.

    The channels of one place begin at a multiple of `unit` elements.
    """
    channels = images.shape[1]
    if (images.strides[1] == 1 or channels == 1) and channels % unit == 0:
        return images
    copy = plan_copy_of(plan, images, unit)
    plan_transpose(plan, *_matrices(images, copy))
    return copy


def plan_copy_of(plan: Plan, images: Operand, unit: int = 1) -> Operand:
    """Return memory for images of the same shape, with channels last and from multiples of `unit` on."""
    batch, channels, height, width = images.shape
    pitch = triton.cdiv(channels, unit) * unit
    copy = plan.empty((batch, height, width, pitch), images.dtype)
    return copy.seen_as(images.shape, (height * width * pitch, 1, width * pitch, pitch))


def plan_from_channels_last(plan: Plan, copy: Operand, images: Operand) -> None:
    """Plan images as a copy of those with channels last."""
    by_channels, by_places = _matrices(images, copy)
    plan_transpose(plan, by_places, by_channels)


def lies_in_rows(weight: Operand, row: int) -> bool:
    """Return whether an output's taps and channels are contiguous, channels innermost, outputs `row` elements apart."""
    _, channels, _, taps_across = weight.shape
    wanted = (row, 1, taps_across * channels, channels)
    return all(
        size == 1 or step == right for size, step, right in zip(weight.shape, weight.strides, wanted, strict=True)
    )


def plan_sum_into(plan: Plan, partials: Operand, weight: Operand) -> None:
    """Plan the total of partial sums, which have channels last, in the layout of the weight."""
    outputs, channels, height, width = weight.shape
    compute = compute_dtype(weight.dtype)
    everything = (outputs * height * width * channels,)
    if lies_in_rows(weight, height * width * channels):
        plan_sum_of_partials(plan, partials, weight.seen_as(everything, (1,)), compute)
        return
    total = plan_copy_of(plan, weight)
    plan_sum_of_partials(plan, partials, total.seen_as(everything, (1,)), compute)
    plan_from_channels_last(plan, total, weight)


def _matrices(images: Operand, places: Operand) -> tuple[Operand, Operand]:
    """Return images and their channels-last copy as matrices, one the transpose of the other."""
    batch, channels, height, width = images.shape
    of_image, of_channel, of_row, of_column = images.strides
    to_image, _, to_row, to_column = places.strides
    if of_row == width * of_column:
        area = height * width
        by_places = places.seen_as((batch, area, channels), (to_image, to_column, 1))
        return images.seen_as((batch, channels, area), (of_image, of_channel, of_column)), by_places
    by_places = places.seen_as((batch, height, width, channels), (to_image, to_row, to_column, 1))
    return images.seen_as((batch, height, channels, width), (of_image, of_row, of_channel, of_column)), by_places
