"""What all kernels of a convolution speak of: its sizes, and how its tensors have to lie for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.images.windows import Pair, Window
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.transpose import plan_transpose

# Below so many channels in a group, a block of them would be padding for the most part: then a window's elements and
# channels are numbered through, and a block has several elements of the window.
FEWEST_CHANNELS = 16
MOST_OF_A_CHANNEL = 4  # outputs that come of a single channel before they are worth a matrix product


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
        """From the shapes of images and weight."""
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
        """Whether each output comes of one channel, and few of each: no matrices to multiply."""
        return self.channels == 1 and self.outputs <= MOST_OF_A_CHANNEL

    @property
    def flops(self) -> int:
        return 2 * self.positions * self.outputs * self.groups * self.channels * math.prod(self.window.kernel)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums over elements of this dtype are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def shared_out(positions: int, block: int, blocks: int, programs: int) -> tuple[int, int]:
    """Into how many shares the positions go, and how many positions each has, in whole blocks, if about as many
    programs are to run as given, and each share is needed by that many blocks of the result."""
    steps = max(triton.cdiv(positions, block), 1)
    shares = min(max(programs // blocks, 1), steps)
    per_share = triton.cdiv(steps, shares)
    return triton.cdiv(steps, per_share), per_share * block


def plan_channels_last(plan: Plan, images: Operand) -> Operand:
    """The images, or a weight, with neighbouring channels next to each other in memory: a copy, unless they are."""
    batch, channels, height, width = images.shape
    if images.strides[1] == 1 or channels == 1:
        return images
    copy = plan.empty((batch, height, width, channels), images.dtype)
    plan_transpose(plan, *_matrices(images, copy))
    return copy.seen_as(images.shape, (height * width * channels, 1, width * channels, channels))


def lies_in_rows(weight: Operand, row: int) -> bool:
    """Whether an output's taps and channels lie one after the other, the channels of a tap together, and from output to
    output it is so far."""
    _, channels, _, taps_across = weight.shape
    wanted = (row, 1, taps_across * channels, channels)
    return all(
        size == 1 or step == right for size, step, right in zip(weight.shape, weight.strides, wanted, strict=True)
    )


def plan_sum_into(plan: Plan, partials: Operand, weight: Operand) -> None:
    """Add up rows of partial sums, which have the channels last, and lay the total out as the weight is."""
    outputs, channels, height, width = weight.shape
    compute = compute_dtype(weight.dtype)
    everything = (outputs * height * width * channels,)
    if lies_in_rows(weight, height * width * channels):
        plan_sum_of_partials(plan, partials, weight.seen_as(everything, (1,)), compute)
        return
    total = plan.empty((outputs, height, width, channels), weight.dtype)
    plan_sum_of_partials(plan, partials, total.seen_as(everything, (1,)), compute)
    by_channels, by_places = _matrices(weight, total)
    plan_transpose(plan, by_places, by_channels)


def _matrices(images: Operand, places: Operand) -> tuple[Operand, Operand]:
    """Images, and their copy with the channels last, as matrices of which one is the other's transpose."""
    batch, channels, height, width = images.shape
    of_image, of_channel, of_row, of_column = images.strides
    if of_row == width * of_column:
        area = height * width
        by_places = places.seen_as((batch, area, channels), (area * channels, channels, 1))
        return images.seen_as((batch, channels, area), (of_image, of_channel, of_column)), by_places
    return images.seen_as((batch, height, channels, width), (of_image, of_row, of_channel, of_column)), places
