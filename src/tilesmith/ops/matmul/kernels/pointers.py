"""The GEMM by plain pointers: any strides, any GPU, one program per tile."""

import triton
import triton.language as tl

from tilesmith.ops.device.bf16x3 import bf16_parts, dot_bf16_parts, finite_or_zero
from tilesmith.ops.matmul.kernels.bf16x3_passes import CORRECTION_PASSES, next_step, parts_of_pass, separately_added
from tilesmith.ops.matmul.kernels.epilogue import activated, plus_addend, scaled_and_shifted, store_tile
from tilesmith.ops.matmul.kernels.tiles import batch_start, known_multiple, tile_place


@triton.jit
def accumulated(
    total, a_side, b_side, steps, PASSES: tl.constexpr, BF16X3: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return the total plus the products of all steps of depth, PASSES times, each time of other parts of bf16x3.

    A side is (pointer, offsets of a block, stride of depth, mask of rows or columns). `steps` is (first step, number of
    steps, depth, columns of one part).
    """
    a_ptr, a_offsets, a_depth_stride, in_rows = a_side  # offsets: [BLOCK_M, BLOCK_K]
    b_ptr, b_offsets, b_depth_stride, in_columns = b_side  # offsets: [BLOCK_K, BLOCK_N]
    first_step, n_steps, depth, part_columns = steps
    depths = tl.arange(0, BLOCK_K)
    step, number = first_step, 0
    for _ in range(n_steps * PASSES):
        start = step * BLOCK_K
        a_start, b_start = start, start
        if PASSES > 1:
            a_part, b_part = parts_of_pass(number)
            whole = known_multiple(part_columns, BLOCK_K)
            a_start, b_start = start + a_part * whole, start + b_part * whole
        in_depth = depths < depth - start
        a_pointers = a_ptr + a_start.to(tl.int64) * a_depth_stride + a_offsets
        b_pointers = b_ptr + b_start.to(tl.int64) * b_depth_stride + b_offsets
        a = tl.load(a_pointers, mask=in_rows[:, None] & in_depth[None, :], other=0.0)  # [BLOCK_M, BLOCK_K]
        b = tl.load(b_pointers, mask=in_depth[:, None] & in_columns[None, :], other=0.0)  # [BLOCK_K, BLOCK_N]
        if BF16X3 == "here":
            total += dot_bf16_parts(bf16_parts(a), bf16_parts(b))
        elif BF16X3 == "stored" and PASSES == 1:
            total = separately_added(total, a, b, PRECISION)
        else:
            total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=total.dtype)
        if PASSES > 1:
            step, number = next_step(step, number, first_step, n_steps)
        else:
            step += 1
    return total  # [BLOCK_M, BLOCK_N]


@triton.jit
def outer_products(total, a_ptr, b_ptr, rows, columns, a_strides, b_strides, sizes):
    """Return the total plus the outer products of a's columns and b's rows, multiplied in the total's dtype."""
    n_rows, n_columns, depth = sizes
    a_pointers = a_ptr + rows.to(tl.int64) * a_strides[3]
    b_pointers = b_ptr + columns.to(tl.int64) * b_strides[4]
    for step in range(depth):
        place = tl.cast(step, tl.int64)
        a = tl.load(a_pointers + place * a_strides[4], mask=rows < n_rows, other=0.0)  # [BLOCK_M]
        b = tl.load(b_pointers + place * b_strides[3], mask=columns < n_columns, other=0.0)  # [BLOCK_N]
        total += a.to(total.dtype)[:, None] * b.to(total.dtype)[None, :]
    return total  # [BLOCK_M, BLOCK_N]


@triton.jit(
    do_not_specialize=[
        "n_rows", "n_columns", "depth", "n_matrices", "steps_per_split", "split_stride", "part_columns"
    ]
)  # fmt: skip
def matmul_pointers_kernel(
    a_ptr, b_ptr, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr,
    a_strides, b_strides, y_strides, bias_stride, scale_a_stride, scale_b_stride, inner_sizes,
    n_rows, n_columns, depth, n_matrices, steps_per_split, split_stride, part_columns,
    ROWS_MULTIPLE: tl.constexpr, COLUMNS_MULTIPLE: tl.constexpr, DEPTH_MULTIPLE: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, BF16X3: tl.constexpr, OUTER: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile. A split is the part of the depth that one program of a split-K sums.

    Strides are of three batch dimensions, then of a matrix; z and the addend have y's. BF16X3: "stored" where a and b
    hold bf16x3 already, "here" where each tile splits float32 into bf16x3, "" where nothing is split. With OUTER no
    tensor core multiplies.
    """
    n_rows = known_multiple(n_rows, ROWS_MULTIPLE)
    n_columns = known_multiple(n_columns, COLUMNS_MULTIPLE)
    depth = known_multiple(depth, DEPTH_MULTIPLE)
    outer, row_tile, column_tile = tile_place(
        tl.program_id(0), tl.cdiv(n_rows, BLOCK_M), tl.cdiv(n_columns, BLOCK_N), GROUP
    )
    split, batch = outer // n_matrices, outer % n_matrices
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    depths = tl.arange(0, BLOCK_K).to(tl.int64)
    a_ptr += batch_start(batch, inner_sizes, a_strides)
    b_ptr += batch_start(batch, inner_sizes, b_strides)
    a_offsets = (rows.to(tl.int64) * a_strides[3])[:, None] + (depths * a_strides[4])[None, :]  # [BLOCK_M, BLOCK_K]
    b_offsets = (depths * b_strides[3])[:, None] + (columns.to(tl.int64) * b_strides[4])[None, :]  # [BLOCK_K, BLOCK_N]
    first_step = split * steps_per_split
    n_steps = min(tl.cdiv(depth, BLOCK_K) - first_step, steps_per_split)
    steps = (first_step, n_steps, depth, part_columns)
    total = tl.zeros([BLOCK_M, BLOCK_N], COMPUTE)
    a_side = (a_ptr, a_offsets, a_strides[4], rows < n_rows)
    b_side = (b_ptr, b_offsets, b_strides[3], columns < n_columns)
    if BF16X3 == "stored":
        total = accumulated(total, a_side, b_side, steps, CORRECTION_PASSES, BF16X3, PRECISION, BLOCK_K)
        total = finite_or_zero(total)
    if OUTER:
        sizes = (n_rows, n_columns, depth)
        total = outer_products(total, a_ptr, b_ptr, rows, columns, a_strides, b_strides, sizes)
    else:
        total = accumulated(total, a_side, b_side, steps, 1, BF16X3, PRECISION, BLOCK_K)  # [BLOCK_M, BLOCK_N]
    place = (rows, columns, n_rows, n_columns)
    z = scaled_and_shifted(
        total, (bias_ptr, scale_a_ptr, scale_b_ptr), (bias_stride, scale_a_stride, scale_b_stride), place
    )
    start = split.to(tl.int64) * split_stride + batch_start(batch, inner_sizes, y_strides)
    if z_ptr is not None:
        store_tile(z_ptr, z, start, place, y_strides[3], y_strides[4])
    y = activated(z, ACTIVATION)
    y = plus_addend(y, addend_ptr, start, place, y_strides[3], y_strides[4])
    store_tile(y_ptr, y, start, place, y_strides[3], y_strides[4])
