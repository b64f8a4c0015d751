"""The GEMM by TMA on Hopper: tensor descriptors load blocks into shared memory, where the tensor cores read them.

There is one program per tile, or as many persistent programs as fit on the GPU at once. With FLATTEN the loops over
tiles and over depth become one: the first blocks of the next tile arrive while the last tile is stored. With
WARP_SPECIALIZE one group of warps only loads and the others only multiply; Triton needs descriptors for that which the
kernel makes itself.

A `corner` is (matrix, first row, first column) of a tile; `steps` is (first step, number of steps, columns of one part
of bf16x3); WALK is [a along depth, b along depth, a batched, b batched, BLOCK_K].
"""

import triton
import triton.language as tl

from tilesmith.ops.device.bf16x3 import finite_or_zero
from tilesmith.ops.matmul.kernels.bf16x3_passes import CORRECTION_PASSES, next_step, parts_of_pass, separately_added
from tilesmith.ops.matmul.kernels.epilogue import activated, plus_addend, scaled_and_shifted, store_tile
from tilesmith.ops.matmul.kernels.tiles import known_multiple, tile_place


@triton.jit
def loaded(
    operand, matrix, first, depth,
    ALONG_DEPTH: tl.constexpr, BATCHED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return BLOCK rows of a, or columns of b, by BLOCK_K of depth. ALONG_DEPTH: depth is contiguous in memory."""
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
    return block  # [BLOCK, BLOCK_K]


@triton.jit
def accumulated(
    total, a, b, corner, steps, WALK: tl.constexpr,
    PASSES: tl.constexpr, SEPARATE: tl.constexpr, PRECISION: tl.constexpr, IMPRECISE: tl.constexpr,
):  # fmt: skip
    """Return the total plus the products of all steps of depth, PASSES times, each time of other parts of bf16x3."""
    matrix, first_row, first_column = corner
    first_step, n_steps, part_columns = steps
    BLOCK_M: tl.constexpr = total.shape[0]
    BLOCK_N: tl.constexpr = total.shape[1]
    BLOCK_K: tl.constexpr = WALK[4]
    step, number = first_step, 0
    for _ in range(n_steps * PASSES):
        start = step * BLOCK_K
        a_start, b_start = start, start
        if PASSES > 1:
            a_part, b_part = parts_of_pass(number)
            a_start, b_start = start + a_part * part_columns, start + b_part * part_columns
        a_block = loaded(a, matrix, first_row, a_start, WALK[0], WALK[2], BLOCK_M, BLOCK_K)  # [BLOCK_M, BLOCK_K]
        b_block = loaded(b, matrix, first_column, b_start, WALK[1], WALK[3], BLOCK_N, BLOCK_K).T  # [BLOCK_K, BLOCK_N]
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
    return total  # [BLOCK_M, BLOCK_N]


@triton.jit
def corrections_in_halves(
    a, b, corner, steps, WALK: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, HALF: tl.constexpr
):
    """Return the correction passes of the left and of the right half of a tile, computed together.

    The high products that follow are added separately, which takes the registers of a second total: half a tile has
    room for one, a whole tile has not.
    """
    matrix, first_row, first_column = corner
    first_step, n_steps, part_columns = steps
    BLOCK_K: tl.constexpr = WALK[4]
    left = tl.zeros([BLOCK_M, HALF], tl.float32)
    right = tl.zeros([BLOCK_M, HALF], tl.float32)
    step, number = first_step, 0
    for _ in range(n_steps * CORRECTION_PASSES):
        a_part, b_part = parts_of_pass(number)
        a_start, b_start = step * BLOCK_K + a_part * part_columns, step * BLOCK_K + b_part * part_columns
        a_block = loaded(a, matrix, first_row, a_start, WALK[0], WALK[2], BLOCK_M, BLOCK_K)  # [BLOCK_M, BLOCK_K]
        b_left = loaded(b, matrix, first_column, b_start, WALK[1], WALK[3], HALF, BLOCK_K).T  # [BLOCK_K, HALF]
        b_right = loaded(b, matrix, first_column + HALF, b_start, WALK[1], WALK[3], HALF, BLOCK_K).T
        left = tl.dot(a_block, b_left, left, input_precision=PRECISION)
        right = tl.dot(a_block, b_right, right, input_precision=PRECISION)
        step, number = next_step(step, number, first_step, n_steps)
    return left, right


@triton.jit
def store_part(part, descriptor, ptr, strides, corner, place, BATCHED: tl.constexpr):
    """Store part of a tile, [ROWS, COLUMNS]: by the descriptor where there is one, else by pointers."""
    outer, first_row, first_column = corner
    if descriptor is None:
        store_tile(ptr, part, outer.to(tl.int64) * strides[0], place, strides[1], strides[2])
    elif BATCHED:
        block = part.to(descriptor.dtype).reshape(1, part.shape[0], part.shape[1])
        descriptor.store([outer, first_row, first_column], block)
    else:
        descriptor.store([first_row, first_column], part.to(descriptor.dtype))


@triton.jit
def finish_part(total, y, z, pointers, strides, corner, sizes, BATCHED: tl.constexpr, ACTIVATION: tl.constexpr):
    """Apply the epilogue to part of a tile, [ROWS, COLUMNS], and store it.

    `pointers`: y, z and the addend, then bias, scale_a and scale_b. `strides`: those of y, then of the three vectors.
    `sizes`: rows and columns of the matrix.
    """
    y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr = pointers
    outer, first_row, first_column = corner
    n_rows, n_columns = sizes
    rows, columns = first_row + tl.arange(0, total.shape[0]), first_column + tl.arange(0, total.shape[1])
    place = (rows, columns, n_rows, n_columns)
    part = scaled_and_shifted(
        total, (bias_ptr, scale_a_ptr, scale_b_ptr), (strides[1], strides[2], strides[3]), place
    )  # fmt: skip
    if z is not None or z_ptr is not None:
        store_part(part, z, z_ptr, strides[0], corner, place, BATCHED)
    part = activated(part, ACTIVATION)
    start = outer.to(tl.int64) * strides[0][0]
    part = plus_addend(part, addend_ptr, start, place, strides[0][1], strides[0][2])
    store_part(part, y, y_ptr, strides[0], corner, place, BATCHED)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "depth", "n_matrices", "n_tiles", "steps_per_split", "part_columns"]
)
def matmul_descriptors_kernel(
    a, b, y, z, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr,
    a_stride, b_stride, y_strides, bias_stride, scale_a_stride, scale_b_stride,
    n_rows, n_columns, depth, n_matrices, n_tiles, steps_per_split, part_columns,
    A_ALONG_DEPTH: tl.constexpr, B_ALONG_DEPTH: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, Y_BATCHED: tl.constexpr, COLUMNS_MULTIPLE: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, BF16X3: tl.constexpr, SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FLATTEN: tl.constexpr, WARP_SPECIALIZE: tl.constexpr, HALVES: tl.constexpr, IMPRECISE: tl.constexpr,
):  # fmt: skip
    """Compute tiles. a, b, y and z are descriptors; with WARP_SPECIALIZE pointers, and rows have the stride given.

    Where y and z are None, pointers and the strides of y store them: of a matrix, a row, a column. The addend is always
    read by pointers. BF16X3: a and b hold bf16x3. SPLIT_K: split-K, where each program sums a part of the depth.
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
    WALK: tl.constexpr = [A_ALONG_DEPTH, B_ALONG_DEPTH, A_BATCHED, B_BATCHED, BLOCK_K]
    HALF: tl.constexpr = BLOCK_N // 2
    pointers = (y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr)
    strides = (y_strides, bias_stride, scale_a_stride, scale_b_stride)
    sizes = (n_rows, n_columns)
    n_row_tiles, n_column_tiles = tl.cdiv(n_rows, BLOCK_M), tl.cdiv(n_columns, BLOCK_N)
    n_steps_in_all = tl.cdiv(depth, BLOCK_K)
    for tile in tl.range(
        tl.program_id(0), n_tiles, tl.num_programs(0), flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        outer, row_tile, column_tile = tile_place(tile, n_row_tiles, n_column_tiles, GROUP)
        matrix, first_step, n_steps = outer, 0, n_steps_in_all
        if SPLIT_K:
            matrix = outer % n_matrices
            first_step = outer // n_matrices * steps_per_split
            n_steps = min(n_steps_in_all - first_step, steps_per_split)
        row, column = row_tile * BLOCK_M, column_tile * BLOCK_N
        steps = (first_step, n_steps, part_columns)
        if BF16X3 and HALVES:
            left, right = corrections_in_halves(a, b, (matrix, row, column), steps, WALK, PRECISION, BLOCK_M, HALF)
            left = accumulated(
                finite_or_zero(left), a, b, (matrix, row, column), steps, WALK, 1, True, PRECISION, IMPRECISE
            )
            right = accumulated(
                finite_or_zero(right), a, b, (matrix, row, column + HALF), steps, WALK, 1, True, PRECISION, IMPRECISE
            )
        else:
            total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            if BF16X3:
                total = accumulated(
                    total, a, b, (matrix, row, column), steps, WALK, CORRECTION_PASSES, False, PRECISION, IMPRECISE
                )
                total = finite_or_zero(total)
            total = accumulated(total, a, b, (matrix, row, column), steps, WALK, 1, BF16X3, PRECISION, IMPRECISE)
            if HALVES:
                left, right = tl.split(total.reshape(BLOCK_M, 2, HALF).permute(0, 2, 1))  # [BLOCK_M, HALF] each
        if HALVES:
            finish_part(left, y, z, pointers, strides, (outer, row, column), sizes, Y_BATCHED, ACTIVATION)
            finish_part(right, y, z, pointers, strides, (outer, row, column + HALF), sizes, Y_BATCHED, ACTIVATION)
        else:
            finish_part(total, y, z, pointers, strides, (outer, row, column), sizes, Y_BATCHED, ACTIVATION)
