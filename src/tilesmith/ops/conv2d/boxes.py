"""The GEMM of windows and weights by TMA, on Hopper.

A block of positions is a box: some images, rows and columns. One tap of all their windows covers a shifted box of the
source, which one TMA load brings, the padding as zeros. So no thread computes addresses, and no registers hold them.
Neighbouring positions must be neighbours in the source: so with a stride of one, and in the input's gradient, whose
classes of positions have this property for any stride.
"""

import triton
import triton.language as tl

from tilesmith.ops.conv2d.pointers import Outputs, Positions, Result, as_walk, next_block, store_result


@triton.jit(do_not_specialize=["n_images", "down", "across"])
def conv2d_boxes_kernel(
    source, weight, bias_ptr, result_ptr, result_strides, bias_stride, result_start, n_images, result_height,
    result_width, channels, outputs, tap_columns, down, across,
    WEIGHT_ALONG_CHANNELS: tl.constexpr, HAS_BIAS: tl.constexpr, OUTPUTS_INNER: tl.constexpr, PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr, BLOCK_POSITIONS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
    BOX_ROWS: tl.constexpr, BOX_COLUMNS: tl.constexpr,
):  # fmt: skip
    """One box of positions and one block of outputs of one group.

    A row of the weight holds its taps one after the other; `tap_columns` are the distances from tap to tap and from row
    to row of taps.
    """
    walk_down, walk_across = as_walk(down), as_walk(across)
    BOX_IMAGES: tl.constexpr = BLOCK_POSITIONS // (BOX_ROWS * BOX_COLUMNS)
    group = tl.program_id(1)
    blocks_of_outputs = tl.cdiv(outputs, BLOCK_OUTPUTS)
    boxes_across, boxes_down = tl.cdiv(result_width, BOX_COLUMNS), tl.cdiv(result_height, BOX_ROWS)
    first_output = tl.program_id(0) % blocks_of_outputs * BLOCK_OUTPUTS
    box = tl.program_id(0) // blocks_of_outputs
    first_column, first_row = box % boxes_across * BOX_COLUMNS, box // boxes_across % boxes_down * BOX_ROWS
    first_image = box // boxes_across // boxes_down * BOX_IMAGES
    total = tl.zeros([BLOCK_POSITIONS, BLOCK_OUTPUTS], COMPUTE)  # [BLOCK_POSITIONS, BLOCK_OUTPUTS]
    channel, tap_down, tap_across = 0, 0, 0
    for _ in range(walk_down.taps * walk_across.taps * tl.cdiv(channels, BLOCK_CHANNELS)):
        row = first_row + walk_down.start + tap_down * walk_down.tap_step
        column = first_column + walk_across.start + tap_across * walk_across.tap_step
        # [BOX_IMAGES, BOX_ROWS, BOX_COLUMNS, BLOCK_CHANNELS]
        windows = source.load([first_image, row, column, group * channels + channel])
        weight_row = walk_down.first + tap_down * walk_down.weight_step
        weight_column = walk_across.first + tap_across * walk_across.weight_step
        tap = weight_row * tap_columns[1] + weight_column * tap_columns[0]
        if WEIGHT_ALONG_CHANNELS:  # weights is [BLOCK_CHANNELS, BLOCK_OUTPUTS] either way
            weights = weight.load([group * outputs + first_output, tap + channel]).T
        else:
            weights = weight.load([group * channels + channel, tap + first_output])
        windows = windows.reshape(BLOCK_POSITIONS, BLOCK_CHANNELS)  # [BLOCK_POSITIONS, BLOCK_CHANNELS]
        total = tl.dot(windows, weights, total, input_precision=PRECISION, out_dtype=COMPUTE)
        channel, tap_down, tap_across = next_block(
            channel, tap_down, tap_across, walk_down.taps, walk_across.taps, BLOCK_CHANNELS
        )
    position = tl.arange(0, BLOCK_POSITIONS)  # [BLOCK_POSITIONS], as image, row and column
    image = first_image + position // (BOX_ROWS * BOX_COLUMNS)
    row, column = first_row + position // BOX_COLUMNS % BOX_ROWS, first_column + position % BOX_COLUMNS
    is_position = (image < n_images) & (row < result_height) & (column < result_width)
    output = first_output + tl.arange(0, BLOCK_OUTPUTS)  # [BLOCK_OUTPUTS]
    store_result(
        total, Result(result_ptr + result_start, result_strides, bias_ptr, bias_stride),
        Positions(image, row, column, is_position), Outputs(group.to(tl.int64) * outputs, output, output < outputs),
        HAS_BIAS, OUTPUTS_INNER, COMPUTE,
    )  # fmt: skip
