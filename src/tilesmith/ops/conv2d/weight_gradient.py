"""The weight's gradient: dw[k, c, r, s] = Σ over n, p, q of dy[n, k, p, q] · x[n, c, p·stride − padding + …, …].

A GEMM of outputs × (taps, channels) over the positions: many positions, a small result. So the kernel is split-K: each
program sums one split of the positions, and a second kernel adds up the partial sums in the same order at every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.conv2d.depthwise import plan_depthwise_weight_gradient
from tilesmith.ops.conv2d.hopper.boxes import unit_of_rows
from tilesmith.ops.conv2d.hopper.weight_gradient_plan import plan_hopper_weight_gradient
from tilesmith.ops.conv2d.pointers import is_in_image
from tilesmith.ops.conv2d.problem import (
    FEWEST_CHANNELS,
    Problem,
    plan_channels_last,
    plan_sum_into,
    split_positions,
    sum_dtype,
)
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.images.windows import as_images
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import product_precision


@triton.jit(do_not_specialize=["n_positions", "positions_per_split", "window"])
def conv2d_weight_gradient_kernel(
    dy_ptr, x_ptr, partials_ptr, dy_strides, x_strides, n_positions, positions_per_split, height, width, windows_down,
    windows_across, channels, outputs, window,
    FEW_CHANNELS: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_POSITIONS: tl.constexpr,
):  # fmt: skip
    """One split of the positions: its partial sum of one block of outputs × columns.

    Columns are the channels of one tap; with FEW_CHANNELS, the channels of all taps. `window` is stride, padding and
    dilation, each down and across.
    """
    group, split = tl.program_id(2).to(tl.int64), tl.program_id(1)
    blocks_of_outputs = tl.cdiv(outputs, BLOCK_OUTPUTS)
    output = tl.program_id(0) % blocks_of_outputs * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)  # [BLOCK_OUTPUTS]
    block = tl.program_id(0) // blocks_of_outputs
    n_columns = channels * KERNEL[0] * KERNEL[1]
    if FEW_CHANNELS:
        number = block * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)  # [BLOCK_COLUMNS], as channel and tap
        channel, tap = number % CHANNELS, number // CHANNELS
        has_column = number < n_columns
    else:
        blocks_of_channels = tl.cdiv(channels, BLOCK_COLUMNS)
        channel = block % blocks_of_channels * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
        tap = block // blocks_of_channels  # one for all columns
        number = tap * channels + channel  # [BLOCK_COLUMNS], as channel
        has_column = channel < channels
    down, across = tap // KERNEL[1] * window[4] - window[2], tap % KERNEL[1] * window[5] - window[3]
    x_columns = x_ptr + (group * channels + channel) * x_strides[1]
    x_columns += tl.cast(down, tl.int64) * x_strides[2] + tl.cast(across, tl.int64) * x_strides[3]
    dy_columns = dy_ptr + (group * outputs + output) * dy_strides[1]
    total = tl.zeros([BLOCK_OUTPUTS, BLOCK_COLUMNS], COMPUTE)  # [BLOCK_OUTPUTS, BLOCK_COLUMNS]
    last = tl.minimum((split + 1) * positions_per_split, n_positions)
    for start in range(split * positions_per_split, last, BLOCK_POSITIONS):
        position = start + tl.arange(0, BLOCK_POSITIONS)  # [BLOCK_POSITIONS], as image, p, q and places
        is_position = (position < last)[:, None]
        image = (position // windows_across // windows_down).to(tl.int64)
        p, q = position // windows_across % windows_down, position % windows_across
        dy_places = image * dy_strides[0] + p.to(tl.int64) * dy_strides[2] + q.to(tl.int64) * dy_strides[3]
        dy_mask = is_position & (output < outputs)[None, :]
        # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
        dy = tl.load(dy_columns[None, :] + dy_places[:, None], mask=dy_mask, other=0.0)
        top, left = p * window[0], q * window[1]
        x_places = image * x_strides[0] + top.to(tl.int64) * x_strides[2] + left.to(tl.int64) * x_strides[3]
        if FEW_CHANNELS:
            x_mask = is_in_image(top[:, None] + down[None, :], height) & is_in_image(
                left[:, None] + across[None, :], width
            )
        else:
            x_mask = (is_in_image(top + down, height) & is_in_image(left + across, width))[:, None]
        # [BLOCK_POSITIONS, BLOCK_COLUMNS]
        x = tl.load(x_columns[None, :] + x_places[:, None], mask=x_mask & is_position & has_column[None, :], other=0.0)
        total = tl.dot(tl.trans(dy), x, total, input_precision=PRECISION, out_dtype=COMPUTE)
    rows = split.to(tl.int64) * tl.num_programs(2) * outputs + group * outputs + output
    mask = (output < outputs)[:, None] & has_column[None, :]
    tl.store(partials_ptr + rows[:, None] * n_columns + number[None, :], total, mask=mask)


@dataclass(frozen=True)
class WeightGradientConfig(Config):
    """Each program takes BLOCK_OUTPUTS × BLOCK_COLUMNS of the gradient, BLOCK_POSITIONS of its split at a time."""

    BLOCK_OUTPUTS: int = 64
    BLOCK_COLUMNS: int = 64
    BLOCK_POSITIONS: int = 64
    programs_per_multiprocessor: int = 2


def weight_gradient_config(problem: Problem, target: str, dtype: torch.dtype, multiplied: str) -> WeightGradientConfig:
    few = problem.channels < FEWEST_CHANNELS
    exact = multiplied == "bf16x6"  # bf16x3 splits a block in three, which takes registers
    most = 32 if exact and few else 64 if exact or few or dtype.itemsize > 2 else 128
    columns = problem.channels * (math.prod(problem.window.kernel) if few else 1)
    block_outputs, block_columns = (min(max(bucket(size), 16), most) for size in (problem.outputs, columns))
    cuda, narrow = target.startswith("cuda"), dtype.itemsize == 2
    many_warps = min(block_outputs, block_columns) >= (32 if few else 128)
    if few and cuda and narrow:
        # Few channels are scalar loads, and fewer warps have more of them in flight per thread: the whole backward of
        # 32×3×224² → 64 takes 817 µs on an H200 with four warps and three stages, 854 with eight and two.
        many_warps = False
    return WeightGradientConfig(
        num_warps=8 if many_warps else 4,
        num_stages=2 if not cuda or (few and not narrow) else 3 if narrow else 4,
        BLOCK_OUTPUTS=block_outputs, BLOCK_COLUMNS=block_columns,
        BLOCK_POSITIONS=32 if few or dtype.itemsize > 2 else 64,
    )  # fmt: skip


@kernels("conv2d_weight_gradient")
def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, window: Sequence[int], groups: int, tf32: bool) -> Tensor:
    """Return the gradient in the layout of the weight, whose values are not used."""
    return torch.empty_like(weight)


@weight_gradient.plan
def plan_weight_gradient(
    plan: Plan, dy: Operand, x: Operand, weight: Operand, window: Sequence[int], groups: int, tf32: bool
) -> Operand:
    problem = Problem.of(x.shape, weight.shape, window, groups)
    dweight = plan.empty_like(weight)
    images, gradients = as_images(x), as_images(dy)
    if problem.depthwise:
        plan_depthwise_weight_gradient(plan, problem, gradients, images, dweight)
        return dweight
    unit = unit_of_rows(plan, x.dtype, (problem.channels, problem.outputs), groups)
    if problem.outputs >= FEWEST_CHANNELS:
        gradients = plan_channels_last(plan, gradients, unit)
    few = problem.channels < FEWEST_CHANNELS
    if not few:
        images = plan_channels_last(plan, images, unit)
    if plan_hopper_weight_gradient(plan, problem, gradients, images, dweight):
        return dweight
    multiplied = product_precision(plan, x.dtype, tf32)
    sizes = (bucket(problem.positions), bucket(problem.outputs), bucket(problem.channels))
    default = weight_gradient_config(problem, plan.architecture.target, x.dtype, multiplied)
    config = plan.choose(default, *sizes, *problem.window.kernel, x.dtype)
    taps = math.prod(problem.window.kernel)
    blocks = triton.cdiv(problem.outputs, config.BLOCK_OUTPUTS) * (
        triton.cdiv(problem.channels * taps, config.BLOCK_COLUMNS) if few
        else triton.cdiv(problem.channels, config.BLOCK_COLUMNS) * taps
    )  # fmt: skip
    programs = plan.multiprocessors * config.programs_per_multiprocessor
    splits, per_split = split_positions(problem.positions, config.BLOCK_POSITIONS, blocks * groups, programs)
    partials = plan.empty((splits, weight.shape[0] * taps * problem.channels), sum_dtype(x.dtype))
    windows_down, windows_across = problem.counts
    given = problem.window
    plan.launch(
        conv2d_weight_gradient_kernel, (blocks, splits, groups), config,
        dy_ptr=gradients, x_ptr=images, partials_ptr=partials, dy_strides=gradients.strides, x_strides=images.strides,
        n_positions=problem.positions, positions_per_split=per_split, height=problem.height, width=problem.width,
        windows_down=windows_down, windows_across=windows_across, channels=problem.channels, outputs=problem.outputs,
        window=(*given.stride, *given.padding, *given.dilation), FEW_CHANNELS=few,
        CHANNELS=problem.channels if few else 0, KERNEL=given.kernel, PRECISION=multiplied,
        COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip
    plan_sum_into(plan, partials, dweight)
    return dweight
