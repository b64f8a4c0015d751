"""The gradient, from the result: dx = y · (dy − Σ dy · y)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.runs import run_size
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.softmax.forms import (
    Forms,
    RowConfig,
    Rows,
    column_offsets,
    config_for_columns_apart,
    plan_forms,
    row_pointers,
    rows_along,
    shared_out,
    there,
)


@triton.jit(do_not_specialize=["inner_rows", "n_groups"])
def softmax_backward_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_strides, y_strides, dx_strides, inner_rows, outer_rows, n_columns, n_groups,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Whole rows in registers, ROWS at a time; every program takes each n-th group of rows."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    for group in tl.range(tl.program_id(0), n_groups, tl.num_programs(0), num_stages=PIPELINE):
        mask = there(group, inner_rows, ROWS) & (columns < n_columns)[None, :]
        dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
        y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
        dx_rows = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, ROWS)
        dy = tl.load(dy_rows + column_offsets(columns, dy_strides[3]), mask=mask, other=0.0).to(COMPUTE)
        y = tl.load(y_rows + column_offsets(columns, y_strides[3]), mask=mask, other=0.0).to(COMPUTE)
        dx = y * (dy - tl.sum(dy * y, axis=1)[:, None])
        tl.store(dx_rows + column_offsets(columns, dx_strides[3]), dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["inner_rows"])
def softmax_backward_blocks_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_strides, y_strides, dx_strides, inner_rows, outer_rows, n_columns,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in blocks of columns: read once for the sum, again from cache for the gradient."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group = tl.program_id(0)
    in_rows = there(group, inner_rows, ROWS)
    dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    dx_rows = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, ROWS)
    total = sum_of_products(
        dy_rows, y_rows, dy_strides[3], y_strides[3], in_rows, 0, n_columns, COMPUTE, BLOCKS, ROWS, BLOCK_SIZE
    )
    store_gradient(
        dy_rows, y_rows, dx_rows, dy_strides[3], y_strides[3], dx_strides[3], in_rows, 0, n_columns, total,
        COMPUTE, BLOCKS, BLOCK_SIZE
    )  # fmt: skip


@triton.jit(do_not_specialize=["inner_rows", "n_shares"])
def softmax_products_kernel(
    dy_ptr, y_ptr, statistics_ptr, dy_strides, y_strides, inner_rows, outer_rows, n_columns, n_shares,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Σ dy · y of one share of ROWS rows: BLOCKS blocks of their columns."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, share = tl.program_id(0) // n_shares, tl.program_id(0) % n_shares
    in_rows = there(group, inner_rows, ROWS)
    dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    total = sum_of_products(
        dy_rows, y_rows, dy_strides[3], y_strides[3], in_rows, share * BLOCKS, n_columns,
        COMPUTE, BLOCKS, ROWS, BLOCK_SIZE
    )  # fmt: skip
    tl.store(statistics_ptr + (group * ROWS + tl.arange(0, ROWS)) * n_shares + share, total)


@triton.jit(do_not_specialize=["inner_rows", "n_shares"])
def softmax_backward_shares_kernel(
    dy_ptr, y_ptr, dx_ptr, statistics_ptr, dy_strides, y_strides, dx_strides,
    inner_rows, outer_rows, n_columns, n_shares,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, SHARES: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of one share of ROWS rows, from the sums of all their shares."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, share = tl.program_id(0) // n_shares, tl.program_id(0) % n_shares
    shares = tl.arange(0, SHARES)[None, :]
    places = (group * ROWS + tl.arange(0, ROWS))[:, None] * n_shares + shares
    total = tl.sum(tl.load(statistics_ptr + places, mask=shares < n_shares, other=0.0), axis=1)
    in_rows = there(group, inner_rows, ROWS)
    dy_rows = row_pointers(dy_ptr, dy_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    dx_rows = row_pointers(dx_ptr, dx_strides, group, inner_rows, outer_rows, ROWS)
    store_gradient(
        dy_rows, y_rows, dx_rows, dy_strides[3], y_strides[3], dx_strides[3], in_rows, share * BLOCKS, n_columns, total,
        COMPUTE, BLOCKS, BLOCK_SIZE
    )  # fmt: skip


@triton.jit
def sum_of_products(
    dy_rows, y_rows, dy_column_stride, y_column_stride, in_rows, first_block, n_columns,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Σ dy · y over BLOCKS blocks of each row."""
    products = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < n_columns)[None, :]
        dy_pointers = dy_rows + column_offsets(columns, dy_column_stride)
        y_pointers = y_rows + column_offsets(columns, y_column_stride)
        dy = tl.load(dy_pointers, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        y = tl.load(y_pointers, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        products += dy * y
    return tl.sum(products, axis=1)


@triton.jit
def store_gradient(
    dy_rows, y_rows, dx_rows, dy_column_stride, y_column_stride, dx_column_stride, in_rows, first_block, n_columns,
    total,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """y · (dy − total) for BLOCKS blocks of each row."""
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < n_columns)[None, :]
        dy_pointers = dy_rows + column_offsets(columns, dy_column_stride)
        y_pointers = y_rows + column_offsets(columns, y_column_stride)
        dy = tl.load(dy_pointers, mask=mask, eviction_policy="evict_first").to(COMPUTE)
        y = tl.load(y_pointers, mask=mask, eviction_policy="evict_first").to(COMPUTE)
        dx = y * (dy - total[:, None])
        tl.store(dx_rows + column_offsets(columns, dx_column_stride), dx.to(dx_rows.dtype.element_ty), mask=mask)


FORMS = Forms(
    registers=softmax_backward_kernel,
    blocks=softmax_backward_blocks_kernel,
    statistics=softmax_products_kernel,
    shares=softmax_backward_shares_kernel,
    numbers_per_share=1,
)


def backward_config(rows: Rows, element_bytes: int, multiprocessors: int, warp_size: int) -> RowConfig:
    if rows.columns_apart:
        return shared_out(rows, config_for_columns_apart(rows), multiprocessors)
    block_size = bucket(rows.columns)
    if block_size <= 256:
        return RowConfig(num_warps=4, ROWS=min(bucket(rows.runs.inner), 2048 // block_size), BLOCK_SIZE=block_size)
    if block_size <= 8192:  # 16 elements of y and of dy for each thread
        return RowConfig(num_warps=block_size // 512, BLOCK_SIZE=block_size)
    # One warp for each KiB of y's row and dy's, as many as there can be, and 16 bytes of each for a thread at a time.
    warps = min(bucket(2 * rows.columns * element_bytes // 1024 + 1) // 2, 32)
    # Element by element and with warps of 64 threads, 8: as in the forward, more would spill.
    vector = 8 if warp_size == 64 and not rows.in_full_vectors else 16
    wide = RowConfig(num_warps=warps, BLOCK_SIZE=warps * 32 * vector // element_bytes, form="blocks")
    return shared_out(rows, wide, multiprocessors)


@kernels("softmax_backward")
def backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    return torch.empty_like(y)


@backward.plan
def plan_backward(plan: Plan, dy: Operand, y: Operand, dim: int) -> Operand:
    dx = plan.empty_like(y)
    rows = rows_along(dim, dx.shape, dx.strides, y.strides, dy.strides)
    default = backward_config(rows, y.element_bytes, plan.multiprocessors, plan.architecture.warp_size)
    config = plan.choose(default, default.form, bucket(rows.columns), y.dtype)
    plan_forms(plan, FORMS, rows, config, rows.arguments(dx=dx, y=y, dy=dy), y.element_bytes)
    return dx
