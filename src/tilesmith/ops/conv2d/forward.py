"""Forward and input gradient as launches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tilesmith.ops.conv2d.depthwise import plan_depthwise_forward, plan_depthwise_input_gradient
from tilesmith.ops.conv2d.gather import plan_gather
from tilesmith.ops.conv2d.hopper.boxes import unit_of_rows
from tilesmith.ops.conv2d.hopper.gather_plan import plan_hopper_gather
from tilesmith.ops.conv2d.interleaved import fits_interleaved, plan_interleaved
from tilesmith.ops.conv2d.problem import (
    FEWEST_CHANNELS,
    Gather,
    Problem,
    backward_walk,
    forward_walk,
    plan_channels_last,
)
from tilesmith.ops.device.images.windows import as_images, empty_images, lies_channels_last, plan_empty_images
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import product_precision


def result_lies_channels_last(x: Tensor | Operand, weight: Tensor | Operand) -> bool:
    """Return whether the result has channels last: as in PyTorch, if the images or the weight have."""
    return any(lies_channels_last(one.shape, _strides(one)) for one in (x, weight))


def _strides(one: Tensor | Operand) -> tuple[int, ...]:
    return one.stride() if isinstance(one, Tensor) else one.strides


@kernels("conv2d_forward")
def forward(x: Tensor, weight: Tensor, bias: Tensor | None, window: Sequence[int], groups: int, tf32: bool) -> Tensor:
    counts = Problem.of(x.shape, weight.shape, window, groups).counts
    shape = (*x.shape[:-3], weight.shape[0], *counts)
    return empty_images(x, shape, x.dtype, channels_last=result_lies_channels_last(x, weight))


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, weight: Operand, bias: Operand | None, window: Sequence[int], groups: int, tf32: bool
) -> Operand:
    problem = Problem.of(x.shape, weight.shape, window, groups)
    shape = (*x.shape[:-3], weight.shape[0], *problem.counts)
    y = plan_empty_images(plan, shape, x.dtype, channels_last=result_lies_channels_last(x, weight))
    images = as_images(x)
    if problem.depthwise:
        plan_depthwise_forward(plan, problem, images, weight, bias, as_images(y))
        return y
    if problem.channels >= FEWEST_CHANNELS:
        unit = unit_of_rows(plan, x.dtype, (problem.channels, problem.outputs), groups)
        images, weight = plan_channels_last(plan, images, unit), plan_channels_last(plan, weight, unit)
    gather = Gather(
        source=images, weight=weight, weight_strides=weight.strides,
        weight_group_stride=problem.outputs * weight.strides[0], bias=bias, result=as_images(y), result_start=0,
        channels=problem.channels, outputs=problem.outputs, groups=groups,
        down=forward_walk(problem, 0), across=forward_walk(problem, 1),
        precision=product_precision(plan, x.dtype, tf32),
    )  # fmt: skip
    if not plan_hopper_gather(plan, [gather]):
        plan_gather(plan, gather)
    return y


@kernels("conv2d_input_gradient")
def input_gradient(
    dy: Tensor, weight: Tensor, height: int, width: int, window: Sequence[int], groups: int, tf32: bool,
    channels_last: bool,
) -> Tensor:  # fmt: skip
    """Return the gradient of images of this height, width and memory format."""
    shape = (*dy.shape[:-3], weight.shape[1] * groups, height, width)
    return empty_images(dy, shape, dy.dtype, channels_last=channels_last)


@input_gradient.plan
def plan_input_gradient(
    plan: Plan, dy: Operand, weight: Operand, height: int, width: int, window: Sequence[int], groups: int, tf32: bool,
    channels_last: bool,
) -> Operand:  # fmt: skip
    shape = (*dy.shape[:-3], weight.shape[1] * groups, height, width)
    dx = plan_empty_images(plan, shape, dy.dtype, channels_last=channels_last)
    problem = Problem.of(shape, weight.shape, window, groups)
    gradients, result = as_images(dy), as_images(dx)
    if problem.depthwise:
        plan_depthwise_input_gradient(plan, problem, gradients, weight, result)
        return dx
    precision = product_precision(plan, dy.dtype, tf32)
    if fits_interleaved(problem):
        plan_interleaved(plan, problem, plan_channels_last(plan, gradients), weight, result, precision)
        return dx
    if problem.outputs >= FEWEST_CHANNELS:
        unit = unit_of_rows(plan, dy.dtype, (problem.channels, problem.outputs), groups)
        gradients, weight = plan_channels_last(plan, gradients, unit), plan_channels_last(plan, weight, unit)
    of_output, of_channel, *of_taps = weight.strides
    stride_down, stride_across = problem.window.stride
    of_image, of_result_channel, of_row, of_column = result.strides
    gathers = []
    for below in range(min(stride_down, height)):
        for beside in range(min(stride_across, width)):
            rows, columns = -(-(height - below) // stride_down), -(-(width - beside) // stride_across)
            strides = (of_image, of_result_channel, of_row * stride_down, of_column * stride_across)
            gathers.append(
                Gather(
                    source=gradients, weight=weight, weight_strides=(of_channel, of_output, *of_taps),
                    weight_group_stride=problem.outputs * of_output, bias=None,
                    result=result.seen_as((*result.shape[:2], rows, columns), strides),
                    result_start=below * of_row + beside * of_column,
                    channels=problem.outputs, outputs=problem.channels, groups=groups,
                    down=backward_walk(problem, 0, below), across=backward_walk(problem, 1, beside),
                    precision=precision, whole_result=result, result_steps=(stride_down, stride_across),
                    result_place=(below, beside),
                )
            )  # fmt: skip
    if not plan_hopper_gather(plan, gathers):
        for gather in gathers:
            plan_gather(plan, gather)
    return dx
