"""The product of windows and weights by pointers: every element is read from where it lies, whatever the strides."""

import triton
import triton.language as tl


@triton.jit
def inside(place, size):
    """Whether a row or column is one of the image's: below zero is beyond the largest, counted without a sign."""
    return place.to(tl.uint32) < tl.cast(size, tl.uint32)


@triton.jit
def next_block(channel, tap_down, tap_across, taps_down, taps_across, BLOCK_CHANNELS: tl.constexpr):
    """The next tap of the same channels, which is mostly made of what the last one was, and is still in cache; after
    the last tap the next channels. Counting is cheaper than dividing."""
    tap_across += 1
    row_ends = tap_across == taps_across
    tap_down += row_ends.to(tl.int32)
    window_ends = tap_down == taps_down
    channel += window_ends.to(tl.int32) * BLOCK_CHANNELS
    return channel, tl.where(window_ends, 0, tap_down), tl.where(row_ends, 0, tap_across)


@triton.jit
def loaded(pointers, mask, KEEP_IN_L1: tl.constexpr):
    """Elements, or zeros. What comes 16 bytes at a time goes past the L1 cache, and 8 bytes at a time through it."""
    return tl.load(pointers, mask=mask, other=0.0, cache_modifier=".ca" if KEEP_IN_L1 else "")


@triton.jit
def product_by_taps(
    total, source_pointers, weight_pointers, top, left, has_output, source_strides, weight_strides,
    source_height, source_width, channels, down, across,
    WHOLE_BLOCKS: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr, KEEP_IN_L1: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Blocks of channels of one tap after the other: neighbours in memory, all inside the image or all outside."""
    lanes = tl.arange(0, BLOCK_CHANNELS)
    if KEEP_IN_L1:
        # The compiler is told of runs of 8 bytes only, though they are longer.
        RUN: tl.constexpr = 64 // source_pointers.dtype.element_ty.primitive_bitwidth
        lanes = tl.max_contiguous(tl.multiple_of(lanes, RUN), RUN)
    channel_start, tap_down, tap_across = 0, 0, 0
    for _ in range(down[3] * across[3] * tl.cdiv(channels, BLOCK_CHANNELS)):
        below, beside = tap_down * down[2], tap_across * across[2]
        channel = channel_start + lanes
        is_inside = (inside(top + below, source_height) & inside(left + beside, source_width))[:, None]
        weight_mask = has_output[None, :]
        if not WHOLE_BLOCKS:
            is_inside = is_inside & (channel < channels)[None, :]
            weight_mask = weight_mask & (channel < channels)[:, None]
        tap = tl.cast(below, tl.int64) * source_strides[2] + tl.cast(beside, tl.int64) * source_strides[3]
        source_offsets = tap + channel * source_strides[1]
        windows = loaded(source_pointers[:, None] + source_offsets[None, :], is_inside, KEEP_IN_L1)
        weight_row, weight_column = down[4] + tap_down * down[5], across[4] + tap_across * across[5]
        weight_tap = weight_row * weight_strides[2] + weight_column * weight_strides[3]
        weight_offsets = weight_tap + channel * weight_strides[1]
        weights = loaded(weight_pointers[None, :] + weight_offsets[:, None], weight_mask, KEEP_IN_L1)
        total = tl.dot(windows, weights, total, input_precision=PRECISION, out_dtype=COMPUTE)
        channel_start, tap_down, tap_across = next_block(
            channel_start, tap_down, tap_across, down[3], across[3], BLOCK_CHANNELS
        )
    return total


@triton.jit
def product_of_few_channels(
    total, source_pointers, weight_pointers, top, left, has_output, source_strides, weight_strides,
    source_height, source_width, down, across,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Taps and channels numbered through, so that blocks are full: each element asks for itself where it lies."""
    for start in range(0, TAPS[0] * TAPS[1] * CHANNELS, BLOCK_CHANNELS):
        number = start + tl.arange(0, BLOCK_CHANNELS)
        channel, tap = number % CHANNELS, number // CHANNELS
        tap_down, tap_across = tap // TAPS[1], tap % TAPS[1]
        exists = tap_down < TAPS[0]
        below, beside = tap_down * down[2], tap_across * across[2]
        is_inside = inside(top[:, None] + below[None, :], source_height) & exists[None, :]
        is_inside &= inside(left[:, None] + beside[None, :], source_width)
        source_offsets = below.to(tl.int64) * source_strides[2] + beside.to(tl.int64) * source_strides[3]
        source_offsets += channel.to(tl.int64) * source_strides[1]
        windows = tl.load(source_pointers[:, None] + source_offsets[None, :], mask=is_inside, other=0.0)
        weight_row, weight_column = down[4] + tap_down * down[5], across[4] + tap_across * across[5]
        weight_tap = weight_row * weight_strides[2] + weight_column * weight_strides[3]
        weight_offsets = weight_tap + channel * weight_strides[1]
        weight_mask = exists[:, None] & has_output[None, :]
        weights = tl.load(weight_pointers[None, :] + weight_offsets[:, None], mask=weight_mask, other=0.0)
        total = tl.dot(windows, weights, total, input_precision=PRECISION, out_dtype=COMPUTE)
    return total


@triton.jit
def store_result(
    total, result_ptr, bias_ptr, result_strides, bias_stride, image, row, column, first_output, output, is_position,
    has_output, HAS_BIAS: tl.constexpr, OUTPUTS_INNER: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Positions × outputs, with the bias, to where they belong; the way around that writes what lies together."""
    channel = first_output + output
    if HAS_BIAS:
        bias = tl.load(bias_ptr + channel * bias_stride, mask=has_output, other=0.0)
        total += bias.to(COMPUTE)[None, :]
    places = row.to(tl.int64) * result_strides[2] + column.to(tl.int64) * result_strides[3]
    places += image.to(tl.int64) * result_strides[0]
    result = total.to(result_ptr.dtype.element_ty)
    if OUTPUTS_INNER:
        pointers = result_ptr + places[:, None] + (channel * result_strides[1])[None, :]
        tl.store(pointers, result, mask=is_position[:, None] & has_output[None, :])
    else:
        pointers = result_ptr + places[None, :] + (channel * result_strides[1])[:, None]
        tl.store(pointers, tl.trans(result), mask=is_position[None, :] & has_output[:, None])


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
    group = tl.program_id(1).to(tl.int64)
    blocks_of_outputs = tl.cdiv(outputs, BLOCK_OUTPUTS)
    position = tl.program_id(0) // blocks_of_outputs * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)
    output = tl.program_id(0) % blocks_of_outputs * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_position, has_output = position < n_positions, output < outputs
    image = position // result_width // result_height
    row, column = position // result_width % result_height, position % result_width
    top = tl.where(is_position, row * down[0] + down[1], -(1 << 30))  # what is no position lies in no image
    left = column * across[0] + across[1]
    corner = top.to(tl.int64) * source_strides[2] + left.to(tl.int64) * source_strides[3]
    corner += image.to(tl.int64) * source_strides[0]
    source_pointers = source_ptr + group * channels * source_strides[1] + corner
    weight_pointers = weight_ptr + group * weight_group_stride + output.to(tl.int64) * weight_strides[0]
    total = tl.zeros([BLOCK_POSITIONS, BLOCK_OUTPUTS], COMPUTE)
    if FEW_CHANNELS:
        total = product_of_few_channels(
            total, source_pointers, weight_pointers, top, left, has_output, source_strides, weight_strides,
            source_height, source_width, down, across, CHANNELS, TAPS, PRECISION, COMPUTE, BLOCK_CHANNELS,
        )  # fmt: skip
    else:
        total = product_by_taps(
            total, source_pointers, weight_pointers, top, left, has_output, source_strides, weight_strides,
            source_height, source_width, channels, down, across, WHOLE_BLOCKS, PRECISION, COMPUTE, KEEP_IN_L1,
            BLOCK_CHANNELS,
        )  # fmt: skip
    store_result(
        total, result_ptr + result_start, bias_ptr, result_strides, bias_stride, image, row, column, group * outputs,
        output, is_position, has_output, HAS_BIAS, OUTPUTS_INNER, COMPUTE,
    )  # fmt: skip
