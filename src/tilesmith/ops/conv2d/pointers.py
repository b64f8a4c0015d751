"""The GEMM of windows and weights by pointers: every element is loaded from its place, whatever the strides."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Walk(NamedTuple):
    """How positions and taps map to rows along one side (or to columns along the other).

    Position i and tap t read row i·step + start + t·tap_step of the source, and row first + t·weight_step of the
    weight.
    """

    step: int
    start: int
    tap_step: int
    taps: int
    first: int
    weight_step: int


class Source(NamedTuple):
    """The windows of a block of positions in the source: pointers to, rows and columns of, their first elements."""

    pointers: Any  # [BLOCK_POSITIONS]
    top: Any  # [BLOCK_POSITIONS]
    left: Any  # [BLOCK_POSITIONS]
    strides: Any
    height: Any
    width: Any


class Weights(NamedTuple):
    """The weights of a block of outputs: pointers to their first taps and channels."""

    pointers: Any  # [BLOCK_OUTPUTS]
    strides: Any
    mask: Any  # [BLOCK_OUTPUTS]


class Positions(NamedTuple):
    """A block of positions of the result, [BLOCK_POSITIONS] each."""

    image: Any
    row: Any
    column: Any
    mask: Any


class Outputs(NamedTuple):
    """A block of outputs of one group; `first` is the group's first output."""

    first: Any
    output: Any  # [BLOCK_OUTPUTS]
    mask: Any  # [BLOCK_OUTPUTS]


class Result(NamedTuple):
    """The images that are written, and the bias that is added to them."""

    pointer: Any
    strides: Any
    bias_ptr: Any
    bias_stride: Any


@triton.jit
def as_walk(numbers):
    """Return a kernel's argument as a Walk."""
    return Walk(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5])


@triton.jit
def is_in_image(place, size):
    """Return whether a row or column is one of the image's. As an unsigned number, a negative one is too large."""
    return place.to(tl.uint32) < tl.cast(size, tl.uint32)


@triton.jit
def next_block(channel, tap_down, tap_across, taps_down, taps_across, BLOCK_CHANNELS: tl.constexpr):
    """Return the next tap of the same channels; after the last tap, the first tap of the next channels.

    Neighbouring taps read mostly the same elements, which are still in cache. Counting is cheaper than dividing.
    """
    tap_across += 1
    row_ends = tap_across == taps_across
    tap_down += row_ends.to(tl.int32)
    window_ends = tap_down == taps_down
    channel += window_ends.to(tl.int32) * BLOCK_CHANNELS
    return channel, tl.where(window_ends, 0, tap_down), tl.where(row_ends, 0, tap_across)


@triton.jit
def load_or_zeros(pointers, mask, KEEP_IN_L1: tl.constexpr):
    """Return elements, zeros outside the mask. Copies of 16 bytes bypass the L1 cache, copies of 8 bytes use it."""
    return tl.load(pointers, mask=mask, other=0.0, cache_modifier=".ca" if KEEP_IN_L1 else "")


@triton.jit
def product_by_taps(
    total, source, weight, channels, walks,
    WHOLE_BLOCKS: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr, KEEP_IN_L1: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Add up blocks of channels, tap by tap: neighbours in memory, all inside the image or all outside."""
    down, across = walks[0], walks[1]
    lanes = tl.arange(0, BLOCK_CHANNELS)  # [BLOCK_CHANNELS], as channel and offsets
    if KEEP_IN_L1:
        # Tell the compiler of runs of 8 bytes only, though they are longer.
        RUN: tl.constexpr = 64 // source.pointers.dtype.element_ty.primitive_bitwidth
        lanes = tl.max_contiguous(tl.multiple_of(lanes, RUN), RUN)
    channel_start, tap_down, tap_across = 0, 0, 0
    for _ in range(down.taps * across.taps * tl.cdiv(channels, BLOCK_CHANNELS)):
        below, beside = tap_down * down.tap_step, tap_across * across.tap_step
        channel = channel_start + lanes
        in_image = is_in_image(source.top + below, source.height) & is_in_image(source.left + beside, source.width)
        mask = in_image[:, None]
        weight_mask = weight.mask[None, :]
        if not WHOLE_BLOCKS:
            mask = mask & (channel < channels)[None, :]
            weight_mask = weight_mask & (channel < channels)[:, None]
        tap = tl.cast(below, tl.int64) * source.strides[2] + tl.cast(beside, tl.int64) * source.strides[3]
        source_offsets = tap + channel * source.strides[1]
        # [BLOCK_POSITIONS, BLOCK_CHANNELS]
        windows = load_or_zeros(source.pointers[:, None] + source_offsets[None, :], mask, KEEP_IN_L1)
        weight_row, weight_column = (
            down.first + tap_down * down.weight_step,
            across.first + tap_across * across.weight_step,
        )
        weight_tap = weight_row * weight.strides[2] + weight_column * weight.strides[3]
        weight_offsets = weight_tap + channel * weight.strides[1]
        # [BLOCK_CHANNELS, BLOCK_OUTPUTS]
        weights = load_or_zeros(weight.pointers[None, :] + weight_offsets[:, None], weight_mask, KEEP_IN_L1)
        # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
        total = tl.dot(windows, weights, total, input_precision=PRECISION, out_dtype=COMPUTE)
        channel_start, tap_down, tap_across = next_block(
            channel_start, tap_down, tap_across, down.taps, across.taps, BLOCK_CHANNELS
        )
    return total


@triton.jit
def product_of_few_channels(
    total, source, weight, walks,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Add up taps and channels as one long dimension, so that blocks are full: each element has its own address."""
    down, across = walks[0], walks[1]
    for start in range(0, TAPS[0] * TAPS[1] * CHANNELS, BLOCK_CHANNELS):
        number = start + tl.arange(0, BLOCK_CHANNELS)  # [BLOCK_CHANNELS], as taps, channel and offsets
        channel, tap = number % CHANNELS, number // CHANNELS
        tap_down, tap_across = tap // TAPS[1], tap % TAPS[1]
        exists = tap_down < TAPS[0]
        below, beside = tap_down * down.tap_step, tap_across * across.tap_step
        mask = is_in_image(source.top[:, None] + below[None, :], source.height) & exists[None, :]
        mask &= is_in_image(source.left[:, None] + beside[None, :], source.width)
        source_offsets = below.to(tl.int64) * source.strides[2] + beside.to(tl.int64) * source.strides[3]
        source_offsets += channel.to(tl.int64) * source.strides[1]
        # [BLOCK_POSITIONS, BLOCK_CHANNELS]
        windows = tl.load(source.pointers[:, None] + source_offsets[None, :], mask=mask, other=0.0)
        weight_row, weight_column = (
            down.first + tap_down * down.weight_step,
            across.first + tap_across * across.weight_step,
        )
        weight_tap = weight_row * weight.strides[2] + weight_column * weight.strides[3]
        weight_offsets = weight_tap + channel * weight.strides[1]
        weight_mask = exists[:, None] & weight.mask[None, :]
        # [BLOCK_CHANNELS, BLOCK_OUTPUTS]
        weights = tl.load(weight.pointers[None, :] + weight_offsets[:, None], mask=weight_mask, other=0.0)
        # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
        total = tl.dot(windows, weights, total, input_precision=PRECISION, out_dtype=COMPUTE)
    return total


@triton.jit
def store_result(
    total, result, positions, outputs,
    HAS_BIAS: tl.constexpr, OUTPUTS_INNER: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Store [BLOCK_POSITIONS, BLOCK_OUTPUTS] plus the bias; transposed unless outputs are innermost in memory."""
    channel = outputs.first + outputs.output
    if HAS_BIAS:
        # [BLOCK_OUTPUTS]
        bias = tl.load(result.bias_ptr + channel * result.bias_stride, mask=outputs.mask, other=0.0)
        total += bias.to(COMPUTE)[None, :]
    places = positions.row.to(tl.int64) * result.strides[2] + positions.column.to(tl.int64) * result.strides[3]
    places += positions.image.to(tl.int64) * result.strides[0]  # [BLOCK_POSITIONS]
    values = total.to(result.pointer.dtype.element_ty)  # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
    if OUTPUTS_INNER:
        pointers = result.pointer + places[:, None] + (channel * result.strides[1])[None, :]
        tl.store(pointers, values, mask=positions.mask[:, None] & outputs.mask[None, :])
    else:
        pointers = result.pointer + places[None, :] + (channel * result.strides[1])[:, None]
        tl.store(pointers, tl.trans(values), mask=positions.mask[None, :] & outputs.mask[:, None])


@triton.jit(do_not_specialize=["n_positions", "down", "across"])
def conv2d_gather_kernel(
    source_ptr, weight_ptr, bias_ptr, result_ptr, source_strides, weight_strides, result_strides, bias_stride,
    weight_group_stride, result_start, n_positions, source_height, source_width, result_height, result_width, channels,
    outputs, down, across,
    FEW_CHANNELS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, WHOLE_BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr, OUTPUTS_INNER: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr,
    KEEP_IN_L1: tl.constexpr, BLOCK_POSITIONS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """One block of positions and outputs of one group."""
    walks = (as_walk(down), as_walk(across))
    group = tl.program_id(1).to(tl.int64)
    blocks_of_outputs = tl.cdiv(outputs, BLOCK_OUTPUTS)
    position = tl.program_id(0) // blocks_of_outputs * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)
    output = tl.program_id(0) % blocks_of_outputs * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_position, has_output = position < n_positions, output < outputs  # [BLOCK_POSITIONS], [BLOCK_OUTPUTS]
    image = position // result_width // result_height
    row, column = position // result_width % result_height, position % result_width
    top = tl.where(
        is_position, row * walks[0].step + walks[0].start, -(1 << 30)
    )  # positions past the end are in no image
    left = column * walks[1].step + walks[1].start
    corner = top.to(tl.int64) * source_strides[2] + left.to(tl.int64) * source_strides[3]
    corner += image.to(tl.int64) * source_strides[0]
    source_pointers = source_ptr + group * channels * source_strides[1] + corner
    weight_pointers = weight_ptr + group * weight_group_stride + output.to(tl.int64) * weight_strides[0]
    total = tl.zeros([BLOCK_POSITIONS, BLOCK_OUTPUTS], COMPUTE)  # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
    source = Source(source_pointers, top, left, source_strides, source_height, source_width)
    weight = Weights(weight_pointers, weight_strides, has_output)
    if FEW_CHANNELS:
        total = product_of_few_channels(
            total, source, weight, walks, CHANNELS, TAPS, PRECISION, COMPUTE, BLOCK_CHANNELS
        )  # fmt: skip
    else:
        total = product_by_taps(
            total, source, weight, channels, walks, WHOLE_BLOCKS, PRECISION, COMPUTE, KEEP_IN_L1, BLOCK_CHANNELS
        )  # fmt: skip
    store_result(
        total, Result(result_ptr + result_start, result_strides, bias_ptr, bias_stride),
        Positions(image, row, column, is_position), Outputs(group * outputs, output, has_output),
        HAS_BIAS, OUTPUTS_INNER, COMPUTE,
    )  # fmt: skip
