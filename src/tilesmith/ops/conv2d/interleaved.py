"""The input gradient of a strided convolution with few channels: all classes of positions in one GEMM.

One launch per class would read the whole output gradient for every tap of each class. But classes read nearly the same
rows and columns, and few channels use only a part of the 16 outputs that a tensor core computes at least. So the
channels of all classes are the outputs of one GEMM. For a stem of three channels, 7 × 7 taps and a stride of two, the
GEMM goes through 4 × 4 taps instead of 49. The weight is zero where a class has no tap. A last kernel interleaves the
positions of all classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.conv2d.gather import plan_gather
from tilesmith.ops.conv2d.hopper.gather_plan import plan_hopper_gather
from tilesmith.ops.conv2d.pointers import Walk, is_in_image
from tilesmith.ops.conv2d.problem import FEWEST_CHANNELS, Gather, Problem
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan

MOST_OUTPUTS = 16  # the smallest tile of tensor cores


@triton.jit
def conv2d_join_classes_kernel(
    weight_ptr, joined_ptr, weight_strides, n_elements, outputs,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, START: tl.constexpr,
    TAPS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Write [(class down, class across, channel), tap down, tap across, output] from the weight.

    Taps that a class does not have are zero.
    """
    element = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE], as everything below
    N_TAPS: tl.constexpr = TAPS[0] * TAPS[1]
    output, tap = element % outputs, element // outputs % N_TAPS
    column = element // outputs // N_TAPS
    channel, of_class = column % CHANNELS, column // CHANNELS
    class_down, class_across = of_class // STRIDE[1], of_class % STRIDE[1]
    row = class_down + PADDING[0] - (START[0] - tap // TAPS[1]) * STRIDE[0]
    across = class_across + PADDING[1] - (START[1] - tap % TAPS[1]) * STRIDE[1]
    offsets = output.to(tl.int64) * weight_strides[0] + channel * weight_strides[1]
    offsets += row * weight_strides[2] + across * weight_strides[3]
    mask = element < n_elements
    has_tap = mask & is_in_image(row, KERNEL[0]) & is_in_image(across, KERNEL[1])
    tl.store(joined_ptr + element, tl.load(weight_ptr + offsets, mask=has_tap, other=0.0), mask=mask)


@triton.jit
def conv2d_interleave_kernel(
    classes_ptr, result_ptr, result_strides, height, width, class_height, class_width,
    CHANNELS: tl.constexpr, STRIDE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Write one row of an image from [image, row, column, (class down, class across, channel)]."""
    image, row = (tl.program_id(0) // height).to(tl.int64), tl.program_id(0) % height
    place = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE], as column and channel
    column, channel = place // CHANNELS, place % CHANNELS
    mask = column < width
    class_row = (image * class_height + row // STRIDE[0]) * class_width
    of_class = (row % STRIDE[0] * STRIDE[1] + column % STRIDE[1]) * CHANNELS + channel
    classes = (class_row + column // STRIDE[1]) * (STRIDE[0] * STRIDE[1] * CHANNELS) + of_class
    results = image * result_strides[0] + row.to(tl.int64) * result_strides[2]
    results += channel * result_strides[1] + column.to(tl.int64) * result_strides[3]
    tl.store(result_ptr + results, tl.load(classes_ptr + classes, mask=mask), mask=mask)


@dataclass(frozen=True)
class FlatConfig(Config):
    """Each program takes BLOCK_SIZE elements."""

    BLOCK_SIZE: int = 1024


def fits_interleaved(problem: Problem) -> bool:
    """Return whether the channels of all classes fit into one tile of outputs."""
    classes = math.prod(problem.window.stride)
    return (
        classes > 1
        and problem.groups == 1
        and problem.window.dilation == (1, 1)
        and problem.outputs >= FEWEST_CHANNELS
        and problem.channels * classes <= MOST_OUTPUTS
    )


def joined_walk(problem: Problem, side: int) -> Walk:
    """Return the walk through all rows that any class reads along one side.

    It goes back from the row of the last class's first tap to the row of the first class's last tap.
    """
    window = problem.window
    stride, padding, kernel = window.stride[side], window.padding[side], window.kernel[side]
    start = (stride - 1 + padding) // stride
    last = -((kernel - 1 - padding) // stride)
    return Walk(1, start, -1, start - last + 1, 0, 1)


def plan_interleaved(
    plan: Plan, problem: Problem, gradients: Operand, weight: Operand, result: Operand, precision: str
) -> None:
    """Plan the input's gradient from the output's, which has channels last."""
    window, channels, outputs = problem.window, problem.channels, problem.outputs
    down, across = joined_walk(problem, 0), joined_walk(problem, 1)
    columns = channels * math.prod(window.stride)
    joined = plan.empty((columns, down.taps, across.taps, outputs), weight.dtype)
    elements = math.prod(joined.shape)
    config = FlatConfig(num_warps=4)
    plan.launch(
        conv2d_join_classes_kernel, (triton.cdiv(elements, config.BLOCK_SIZE),), config,
        weight_ptr=weight, joined_ptr=joined, weight_strides=weight.strides, n_elements=elements, outputs=outputs,
        CHANNELS=channels, KERNEL=window.kernel, STRIDE=window.stride, PADDING=window.padding,
        START=(down.start, across.start), TAPS=(down.taps, across.taps),
    )  # fmt: skip
    height, width = triton.cdiv(problem.height, window.stride[0]), triton.cdiv(problem.width, window.stride[1])
    classes = plan.empty((problem.batch, height, width, columns), result.dtype)
    of_column, of_down, of_across, of_output = joined.strides
    weight_strides = (of_column, of_output, of_down, of_across)
    by_places = (height * width * columns, 1, width * columns, columns)
    gather = Gather(
        source=gradients, weight=joined.seen_as((columns, outputs, down.taps, across.taps), weight_strides),
        weight_strides=weight_strides, weight_group_stride=0, bias=None,
        result=classes.seen_as((problem.batch, columns, height, width), by_places), result_start=0,
        channels=outputs, outputs=columns, groups=1, down=down, across=across, precision=precision,
    )  # fmt: skip
    if not plan_hopper_gather(plan, [gather]):
        plan_gather(plan, gather)
    row = problem.width * channels
    config = FlatConfig(num_warps=4, BLOCK_SIZE=min(bucket(row), 1024))
    plan.launch(
        conv2d_interleave_kernel, (problem.batch * problem.height, triton.cdiv(row, config.BLOCK_SIZE)), config,
        classes_ptr=classes, result_ptr=result, result_strides=result.strides, height=problem.height,
        width=problem.width, class_height=height, class_width=width, CHANNELS=channels, STRIDE=window.stride,
    )  # fmt: skip
