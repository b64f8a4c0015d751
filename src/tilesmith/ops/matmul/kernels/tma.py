"""The product on Hopper's copy engine: blocks come by tensor descriptors, straight to where the tensor cores read.

There may be one program per tile, or as many as fit on the GPU at once, each taking tile after tile. With FLATTEN the
loop over tiles and the loop over depth become one, so that the first blocks of the next tile arrive while the last tile
is stored. With WARP_SPECIALIZE one group of warps only asks for blocks and the others only multiply; Triton does that
only with descriptors that the kernel makes itself.
"""

import triton
import triton.language as tl

from tilesmith.ops.device.bf16x3 import finite_or_zero
from tilesmith.ops.matmul.kernels.epilogue import (
    CORRECTION_PASSES,
    activated,
    known_multiple,
    next_step,
    planes_of_pass,
    plus_addend,
    scaled_and_shifted,
    separately_added,
    store_tile,
    tile_place,
)


@triton.jit
def loaded(
    operand, matrix, first, depth,
    ALONG_DEPTH: tl.constexpr, BATCHED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK rows of a, or columns of b, by BLOCK_K of depth. ALONG_DEPTH: neighbours in depth are so in memory too."""
    if ALONG_DEPTH:
        if BATCHED:
            block = operand.load([matrix, first, depth]).reshape(BLOCK, BLOCK_K)
        else:
            block = operand.load([first, depth])
    else:
        if BATCHED:
            block = operand.load([matrix, depth, first]).reshape(BLOCK_K, BLOCK).T
        else:
            block = operand.load([depth, first]).T
    return block


@triton.jit
def accumulated(
    total, a, b, matrix, first_row, first_column, first_step, n_steps, plane_columns,
    A_ALONG_DEPTH: tl.constexpr, B_ALONG_DEPTH: tl.constexpr, A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr,
    PASSES: tl.constexpr, SEPARATE: tl.constexpr, PRECISION: tl.constexpr, IMPRECISE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The total, plus the products of n_steps blocks of depth: all of them PASSES times, each time of other planes."""
    step, number = first_step, 0
    for _ in range(n_steps * PASSES):
        start = step * BLOCK_K
        a_start, b_start = start, start
        if PASSES > 1:
            a_plane, b_plane = planes_of_pass(number)
            a_start, b_start = start + a_plane * plane_columns, start + b_plane * plane_columns
        a_block = loaded(a, matrix, first_row, a_start, A_ALONG_DEPTH, A_BATCHED, BLOCK_M, BLOCK_K)
        b_block = loaded(b, matrix, first_column, b_start, B_ALONG_DEPTH, B_BATCHED, BLOCK_N, BLOCK_K).T
        if SEPARATE:
            total = separately_added(total, a_block, b_block, PRECISION)
        elif IMPRECISE > 0:
            total = tl.dot(a_block, b_block, total, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE)
        else:
            total = tl.dot(a_block, b_block, total, input_precision=PRECISION)
        if PASSES > 1:
            step, number = next_step(step, number, first_step, n_steps)
        else:
            step += 1
    return total


@triton.jit
def corrections_in_halves(
    a, b, matrix, first_row, first_column, first_step, n_steps, plane_columns,
    A_ALONG_DEPTH: tl.constexpr, B_ALONG_DEPTH: tl.constexpr, A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The correction passes for both halves of a tile at once, each half a total of its own.

    The products that follow are added separately, which takes the registers of a second total: there is room for that
    of one half, not of the whole tile.
    """
    left = tl.zeros([BLOCK_M, HALF], tl.float32)
    right = tl.zeros([BLOCK_M, HALF], tl.float32)
    step, number = first_step, 0
    for _ in range(n_steps * CORRECTION_PASSES):
        a_plane, b_plane = planes_of_pass(number)
        a_start, b_start = step * BLOCK_K + a_plane * plane_columns, step * BLOCK_K + b_plane * plane_columns
        a_block = loaded(a, matrix, first_row, a_start, A_ALONG_DEPTH, A_BATCHED, BLOCK_M, BLOCK_K)
        b_left = loaded(b, matrix, first_column, b_start, B_ALONG_DEPTH, B_BATCHED, HALF, BLOCK_K).T
        b_right = loaded(b, matrix, first_column + HALF, b_start, B_ALONG_DEPTH, B_BATCHED, HALF, BLOCK_K).T
        left = tl.dot(a_block, b_left, left, input_precision=PRECISION)
        right = tl.dot(a_block, b_right, right, input_precision=PRECISION)
        step, number = next_step(step, number, first_step, n_steps)
    return left, right


@triton.jit
def store_part(
    part, descriptor, ptr, strides, outer, first_row, first_column, n_rows, n_columns,
    BATCHED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS × COLUMNS results: by the descriptor where there is one, else by pointers."""
    if descriptor is None:
        rows, columns = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
        start = outer.to(tl.int64) * strides[0]
        store_tile(ptr, part, start, rows, columns, n_rows, n_columns, strides[1], strides[2])
    elif BATCHED:
        descriptor.store([outer, first_row, first_column], part.to(descriptor.dtype).reshape(1, ROWS, COLUMNS))
    else:
        descriptor.store([first_row, first_column], part.to(descriptor.dtype))


@triton.jit
def finish_part(
    total, y, z, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr,
    y_strides, bias_stride, scale_a_stride, scale_b_stride, outer, first_row, first_column, n_rows, n_columns,
    BATCHED: tl.constexpr, ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS × COLUMNS sums made into results and stored."""
    rows, columns = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    part = scaled_and_shifted(
        total, bias_ptr, scale_a_ptr, scale_b_ptr, bias_stride, scale_a_stride, scale_b_stride, rows, columns,
        n_rows, n_columns,
    )  # fmt: skip
    if z is not None or z_ptr is not None:
        store_part(part, z, z_ptr, y_strides, outer, first_row, first_column, n_rows, n_columns, BATCHED, ROWS, COLUMNS)
    part = activated(part, ACTIVATION)
    start = outer.to(tl.int64) * y_strides[0]
    part = plus_addend(part, addend_ptr, start, rows, columns, n_rows, n_columns, y_strides[1], y_strides[2])
    store_part(part, y, y_ptr, y_strides, outer, first_row, first_column, n_rows, n_columns, BATCHED, ROWS, COLUMNS)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "depth", "n_matrices", "n_tiles", "steps_per_share", "plane_columns"]
)
def matmul_descriptors_kernel(
    a, b, y, z, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr,
    a_stride, b_stride, y_strides, bias_stride, scale_a_stride, scale_b_stride,
    n_rows, n_columns, depth, n_matrices, n_tiles, steps_per_share, plane_columns,
    A_ALONG_DEPTH: tl.constexpr, B_ALONG_DEPTH: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, Y_BATCHED: tl.constexpr, COLUMNS_MULTIPLE: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, PLANES: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FLATTEN: tl.constexpr, WARP_SPECIALIZE: tl.constexpr, HALVES: tl.constexpr, IMPRECISE: tl.constexpr,
):  # fmt: skip
    """a, b, y and z are descriptors; with WARP_SPECIALIZE, pointers to matrices whose rows are that stride apart.

    Without descriptors, y and z are stored by pointers and the strides of y: of a matrix, a row, a column. The addend
    is always read by them.
    """
    n_columns = known_multiple(n_columns, COLUMNS_MULTIPLE)
    if WARP_SPECIALIZE:
        if A_ALONG_DEPTH:
            a = tl.make_tensor_descriptor(a, [n_rows, depth], [a_stride, 1], [BLOCK_M, BLOCK_K])
        else:
            a = tl.make_tensor_descriptor(a, [depth, n_rows], [a_stride, 1], [BLOCK_K, BLOCK_M])
        if B_ALONG_DEPTH:
            b = tl.make_tensor_descriptor(b, [n_columns, depth], [b_stride, 1], [BLOCK_N, BLOCK_K])
        else:
            b = tl.make_tensor_descriptor(b, [depth, n_columns], [b_stride, 1], [BLOCK_K, BLOCK_N])
        if y is not None:
            y = tl.make_tensor_descriptor(y, [n_rows, n_columns], [y_strides[1], 1], [BLOCK_M, BLOCK_N])
        if z is not None:
            z = tl.make_tensor_descriptor(z, [n_rows, n_columns], [y_strides[1], 1], [BLOCK_M, BLOCK_N])
    n_row_tiles, n_column_tiles = tl.cdiv(n_rows, BLOCK_M), tl.cdiv(n_columns, BLOCK_N)
    n_steps_in_all = tl.cdiv(depth, BLOCK_K)
    for tile in tl.range(
        tl.program_id(0), n_tiles, tl.num_programs(0), flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        outer, row_tile, column_tile = tile_place(tile, n_row_tiles, n_column_tiles, GROUP)
        matrix, first_step, n_steps = outer, 0, n_steps_in_all
        if SHARED:
            matrix = outer % n_matrices
            first_step = outer // n_matrices * steps_per_share
            n_steps = min(n_steps_in_all - first_step, steps_per_share)
        first_row, first_column = row_tile * BLOCK_M, column_tile * BLOCK_N
        if PLANES and HALVES:
            left, right = corrections_in_halves(
                a, b, matrix, first_row, first_column, first_step, n_steps, plane_columns,
                A_ALONG_DEPTH, B_ALONG_DEPTH, A_BATCHED, B_BATCHED, PRECISION, BLOCK_M, BLOCK_N // 2, BLOCK_K,
            )  # fmt: skip
            left = accumulated(
                finite_or_zero(left), a, b, matrix, first_row, first_column, first_step, n_steps, plane_columns,
                A_ALONG_DEPTH, B_ALONG_DEPTH, A_BATCHED, B_BATCHED, 1, True, PRECISION, IMPRECISE,
                BLOCK_M, BLOCK_N // 2, BLOCK_K,
            )  # fmt: skip
            right = accumulated(
                finite_or_zero(right), a, b, matrix, first_row, first_column + BLOCK_N // 2, first_step, n_steps,
                plane_columns, A_ALONG_DEPTH, B_ALONG_DEPTH, A_BATCHED, B_BATCHED, 1, True, PRECISION, IMPRECISE,
                BLOCK_M, BLOCK_N // 2, BLOCK_K,
            )  # fmt: skip
        else:
            total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            if PLANES:
                total = accumulated(
                    total, a, b, matrix, first_row, first_column, first_step, n_steps, plane_columns,
                    A_ALONG_DEPTH, B_ALONG_DEPTH, A_BATCHED, B_BATCHED, CORRECTION_PASSES, False, PRECISION, IMPRECISE,
                    BLOCK_M, BLOCK_N, BLOCK_K,
                )  # fmt: skip
                total = finite_or_zero(total)
            total = accumulated(
                total, a, b, matrix, first_row, first_column, first_step, n_steps, plane_columns,
                A_ALONG_DEPTH, B_ALONG_DEPTH, A_BATCHED, B_BATCHED, 1, PLANES, PRECISION, IMPRECISE,
                BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            if HALVES:
                left, right = tl.split(total.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1))
        if HALVES:
            finish_part(
                left, y, z, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr, y_strides, bias_stride,
                scale_a_stride, scale_b_stride, outer, first_row, first_column, n_rows, n_columns,
                Y_BATCHED, ACTIVATION, BLOCK_M, BLOCK_N // 2,
            )  # fmt: skip
            finish_part(
                right, y, z, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr, y_strides, bias_stride,
                scale_a_stride, scale_b_stride, outer, first_row, first_column + BLOCK_N // 2, n_rows, n_columns,
                Y_BATCHED, ACTIVATION, BLOCK_M, BLOCK_N // 2,
            )  # fmt: skip
        else:
            finish_part(
                total, y, z, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr, y_strides, bias_stride,
                scale_a_stride, scale_b_stride, outer, first_row, first_column, n_rows, n_columns,
                Y_BATCHED, ACTIVATION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
