"""Depthwise convolution: each output depends on a single channel, so there is no GEMM.

Memory-bound. The kernels go through images as pooling does, with a weight for each tap. Each channel has `multiplier`
outputs. Their tiles are [OUTER, INNER], see `device/images/tiles.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.conv2d.pointers import is_in_image
from tilesmith.ops.conv2d.problem import Problem, plan_sum_into, split_positions, sum_dtype
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.images.tiles import (
    MOST_UNROLLED,
    ImageTiles,
    Windows,
    image_offsets,
    tile_of_images,
    window_around,
    window_element,
)
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan


class ChannelWeights(NamedTuple):
    """The weights of a tile's output channels."""

    pointer: Any
    strides: Any
    channel: Any  # shaped as in `Cells`
    n_channels: Any


@triton.jit
def tap_times_weight(
    tap, windows, weights,
    KERNEL: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, OVERHANG: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Return one tap of each window times its weight."""
    x = window_element(windows, tap, 0.0, KERNEL, PADDING, DILATION, OVERHANG)  # [OUTER, INNER]
    strides = weights.strides
    offsets = weights.channel * strides[0] + (tap // KERNEL[1] * strides[2] + tap % KERNEL[1] * strides[3])
    # Shaped as the channel.
    weight = tl.load(weights.pointer + offsets, mask=weights.channel < weights.n_channels, other=0.0)
    return x.to(COMPUTE) * weight.to(COMPUTE)  # [OUTER, INNER]


@triton.jit(do_not_specialize=["n_planes"])
def conv2d_depthwise_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_strides, weight_strides, bias_stride, y_strides, n_planes, sizes, height,
    width, multiplier,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, OVERHANG: tl.constexpr,
    HAS_BIAS: tl.constexpr, CHANNELS_INNER: tl.constexpr, INDEX: tl.constexpr, COMPUTE: tl.constexpr,
    UNROLLED: tl.constexpr,
    PLANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    image, channel, p, q, reads, writes = tile_of_images(
        n_planes, sizes, CHANNELS_INNER, INDEX, PLANES, ROWS, COLUMNS, CHANNELS
    )
    top, left = p * STRIDE[0] - PADDING[0], q * STRIDE[1] - PADDING[1]
    pointers = x_ptr + image_offsets(image, channel // multiplier, top, left, x_strides)
    windows = Windows(pointers, top, left, reads, height, width, x_strides)
    weights = ChannelWeights(weight_ptr, weight_strides, channel, sizes[0])
    total = tl.zeros(reads.shape, COMPUTE)  # [OUTER, INNER]
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
    if UNROLLED:
        for tap in tl.static_range(TAPS):
            total += tap_times_weight(tap, windows, weights, KERNEL, PADDING, DILATION, OVERHANG, COMPUTE)
    else:
        for tap in range(TAPS):
            total += tap_times_weight(tap, windows, weights, KERNEL, PADDING, DILATION, OVERHANG, COMPUTE)
    if HAS_BIAS:
        total += tl.load(bias_ptr + channel * bias_stride, mask=channel < sizes[0], other=0.0).to(COMPUTE)
    y_pointers = y_ptr + image_offsets(image, channel, p, q, y_strides)
    tl.store(y_pointers, total.to(y_ptr.dtype.element_ty), mask=writes)


@triton.jit(do_not_specialize=["n_planes"])
def conv2d_depthwise_input_gradient_kernel(
    dy_ptr, weight_ptr, dx_ptr, dy_strides, weight_strides, dx_strides, n_planes, sizes, windows_down, windows_across,
    multiplier,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, CHANNELS_INNER: tl.constexpr, INDEX: tl.constexpr, COMPUTE: tl.constexpr,
    PLANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Each input element reads the DOWN × ACROSS windows around it, in every output of its channel."""
    image, channel, row, column, reads, writes = tile_of_images(
        n_planes, sizes, CHANNELS_INNER, INDEX, PLANES, ROWS, COLUMNS, CHANNELS
    )
    dx = tl.zeros(reads.shape, COMPUTE)  # [OUTER, INNER]
    for number in range(multiplier * DOWN * ACROSS):
        output = channel * multiplier + number // (DOWN * ACROSS)
        p, q, tap, agrees = window_around(
            row, column, number % (DOWN * ACROSS), windows_down, windows_across, KERNEL, STRIDE, PADDING, DILATION,
            ACROSS,
        )  # fmt: skip
        mask = reads & agrees  # [OUTER, INNER], as dy and weight
        dy = tl.load(dy_ptr + image_offsets(image, output, p, q, dy_strides), mask=mask, other=0.0).to(COMPUTE)
        weight_offsets = tap // KERNEL[1] * weight_strides[2] + tap % KERNEL[1] * weight_strides[3]
        weight = tl.load(weight_ptr + (output * weight_strides[0] + weight_offsets), mask=mask, other=0.0)
        dx += dy * weight.to(COMPUTE)
    dx_pointers = dx_ptr + image_offsets(image, channel, row, column, dx_strides)
    tl.store(dx_pointers, dx.to(dx_ptr.dtype.element_ty), mask=writes)


@triton.jit(do_not_specialize=["n_positions", "positions_per_split"])
def conv2d_depthwise_weight_gradient_kernel(
    dy_ptr, x_ptr, partials_ptr, dy_strides, x_strides, n_positions, positions_per_split, height, width, windows_down,
    windows_across, outputs, multiplier,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """One split of the positions: its partial sum of one tap's gradients, for a block of outputs."""
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
    split, tap = tl.program_id(1), tl.program_id(0) % TAPS
    output = tl.program_id(0) // TAPS * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)  # [BLOCK_OUTPUTS]
    has_output = (output < outputs)[None, :]
    down, across = tap // KERNEL[1] * DILATION[0] - PADDING[0], tap % KERNEL[1] * DILATION[1] - PADDING[1]
    dy_columns = dy_ptr + (output.to(tl.int64) * dy_strides[1])[None, :]
    x_columns = x_ptr + ((output // multiplier).to(tl.int64) * x_strides[1])[None, :]
    total = tl.zeros([BLOCK_POSITIONS, BLOCK_OUTPUTS], COMPUTE)  # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
    last = tl.minimum((split + 1) * positions_per_split, n_positions)
    for start in range(split * positions_per_split, last, BLOCK_POSITIONS):
        position = (start + tl.arange(0, BLOCK_POSITIONS))[:, None]  # [BLOCK_POSITIONS, 1]
        image = (position // windows_across // windows_down).to(tl.int64)
        p, q = position // windows_across % windows_down, position % windows_across
        row, column = p * STRIDE[0] + down, q * STRIDE[1] + across
        mask = (position < last) & has_output & is_in_image(row, height) & is_in_image(column, width)
        dy_places = image * dy_strides[0] + p.to(tl.int64) * dy_strides[2] + q.to(tl.int64) * dy_strides[3]
        x_places = image * x_strides[0] + row.to(tl.int64) * x_strides[2] + column.to(tl.int64) * x_strides[3]
        dy = tl.load(dy_columns + dy_places, mask=mask, other=0.0).to(COMPUTE)  # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
        x = tl.load(x_columns + x_places, mask=mask, other=0.0).to(COMPUTE)  # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
        total += dy * x
    rows = split.to(tl.int64) * outputs + output
    tl.store(partials_ptr + rows * TAPS + tap, tl.sum(total, axis=0), mask=output < outputs)


def plan_depthwise_forward(
    plan: Plan, problem: Problem, x: Operand, weight: Operand, bias: Operand | None, y: Operand
) -> None:
    tiles = ImageTiles(y, x, channels_alike=False)
    config = plan.choose(tiles.config(), *tiles.bucket())
    window = problem.window
    plan.launch(
        conv2d_depthwise_forward_kernel, tiles.grid(config), config,
        x_ptr=x, weight_ptr=weight, bias_ptr=bias, y_ptr=y, y_strides=tiles.strides[0], x_strides=tiles.strides[1],
        weight_strides=weight.strides, bias_stride=bias.strides[0] if bias else 0, height=problem.height,
        width=problem.width, multiplier=problem.outputs, **tiles.arguments(), **window.constants(),
        OVERHANG=window.overhang((problem.height, problem.width), problem.counts), HAS_BIAS=bias is not None,
        UNROLLED=math.prod(window.kernel) <= MOST_UNROLLED, COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip


def plan_depthwise_input_gradient(plan: Plan, problem: Problem, dy: Operand, weight: Operand, dx: Operand) -> None:
    tiles = ImageTiles(dx, dy, channels_alike=False)
    config = plan.choose(tiles.config(), *tiles.bucket())
    (windows_down, windows_across), (down, across) = problem.counts, problem.window.around()
    plan.launch(
        conv2d_depthwise_input_gradient_kernel, tiles.grid(config), config,
        dy_ptr=dy, weight_ptr=weight, dx_ptr=dx, dx_strides=tiles.strides[0], dy_strides=tiles.strides[1],
        weight_strides=weight.strides, windows_down=windows_down, windows_across=windows_across,
        multiplier=problem.outputs, **tiles.arguments(), **problem.window.constants(), DOWN=down, ACROSS=across,
        COMPUTE=compute_dtype(dy.dtype),
    )  # fmt: skip


@dataclass(frozen=True)
class DepthwiseSumConfig(Config):
    """Each program goes through a split of the positions, BLOCK_POSITIONS × BLOCK_OUTPUTS at a time."""

    BLOCK_POSITIONS: int = 512
    BLOCK_OUTPUTS: int = 1
    programs_per_multiprocessor: int = 8


def plan_depthwise_weight_gradient(plan: Plan, problem: Problem, dy: Operand, x: Operand, dweight: Operand) -> None:
    outputs, taps = problem.outputs * problem.groups, math.prod(problem.window.kernel)
    # Neighbouring lanes take neighbours in memory: channels if they are last, else positions.
    block_outputs = min(bucket(outputs), 64) if dy.strides[1] == 1 else 1
    default = DepthwiseSumConfig(BLOCK_POSITIONS=1024 // block_outputs, BLOCK_OUTPUTS=block_outputs)
    config = plan.choose(default, bucket(problem.positions), bucket(outputs), dy.dtype)
    blocks = triton.cdiv(outputs, config.BLOCK_OUTPUTS) * taps
    programs = plan.multiprocessors * config.programs_per_multiprocessor
    splits, per_split = split_positions(problem.positions, config.BLOCK_POSITIONS, blocks, programs)
    partials = plan.empty((splits, outputs * taps), sum_dtype(x.dtype))
    windows_down, windows_across = problem.counts
    plan.launch(
        conv2d_depthwise_weight_gradient_kernel, (blocks, splits), config,
        dy_ptr=dy, x_ptr=x, partials_ptr=partials, dy_strides=dy.strides, x_strides=x.strides,
        n_positions=problem.positions, positions_per_split=per_split, height=problem.height, width=problem.width,
        windows_down=windows_down, windows_across=windows_across, outputs=outputs, multiplier=problem.outputs,
        **problem.window.constants(), COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip
    plan_sum_into(plan, partials, dweight)
