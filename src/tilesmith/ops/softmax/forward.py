"""The forward kernels and what they are launched with."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.constants import LOG2_E
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

# Below every number but −∞, so that x − LOWEST is never NaN for an x that is not.
LOWEST = tl.constexpr(-3.4028234663852886e38)
LOWEST_DOUBLE = tl.constexpr(-1.7976931348623157e308)


@triton.jit(do_not_specialize=["inner_rows", "n_groups"])
def softmax_forward_kernel(
    x_ptr, y_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns, n_groups,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Whole rows in registers, ROWS at a time; every program takes each n-th group of rows."""
    SHORT: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth <= 16
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    for group in tl.range(tl.program_id(0), n_groups, tl.num_programs(0), num_stages=PIPELINE):
        mask = there(group, inner_rows, ROWS) & (columns < n_columns)[None, :]
        x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
        y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
        x = tl.load(x_rows + column_offsets(columns, x_strides[3]), mask=mask, other=float("-inf")).to(COMPUTE)
        exponentials = exponential(x - tl.max(x, axis=1)[:, None], SHORT)
        y = exponentials * (1 / tl.sum(exponentials, axis=1))[:, None]
        tl.store(y_rows + column_offsets(columns, y_strides[3]), y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["inner_rows"])
def softmax_forward_blocks_kernel(
    x_ptr, y_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in blocks of columns: read once for maximum and sum, again from cache for the result."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group = tl.program_id(0)
    in_rows = there(group, inner_rows, ROWS)
    x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    largest, total = statistics_of(
        x_rows, x_strides[3], in_rows, 0, n_columns, COMPUTE, BLOCKS, ROWS, BLOCK_SIZE, GROUP
    )
    store_softmax(
        x_rows, y_rows, x_strides[3], y_strides[3], in_rows, 0, n_columns, largest, total, COMPUTE, BLOCKS, BLOCK_SIZE
    )


@triton.jit(do_not_specialize=["inner_rows", "n_groups", "n_shares"])
def softmax_statistics_kernel(
    x_ptr, statistics_ptr, x_strides, inner_rows, outer_rows, n_columns, n_groups, n_shares,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of one share of ROWS rows: BLOCKS blocks of their columns."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, share = tl.program_id(0) // n_shares, tl.program_id(0) % n_shares
    in_rows = there(group, inner_rows, ROWS)
    x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
    largest, total = statistics_of(
        x_rows, x_strides[3], in_rows, share * BLOCKS, n_columns, COMPUTE, BLOCKS, ROWS, BLOCK_SIZE, GROUP
    )
    places = (group * ROWS + tl.arange(0, ROWS)) * n_shares + share
    tl.store(statistics_ptr + places, largest)
    tl.store(statistics_ptr + n_groups * ROWS * n_shares + places, total)


@triton.jit(do_not_specialize=["inner_rows", "n_groups", "n_shares"])
def softmax_forward_shares_kernel(
    x_ptr, y_ptr, statistics_ptr, x_strides, y_strides, inner_rows, outer_rows, n_columns, n_groups, n_shares,
    ALIGNED_ROWS: tl.constexpr, COMPUTE: tl.constexpr, SHARES: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The result for one share of ROWS rows, from the statistics of all their shares."""
    inner_rows = run_size(inner_rows, ALIGNED_ROWS)
    group, share = tl.program_id(0) // n_shares, tl.program_id(0) % n_shares
    shares = tl.arange(0, SHARES)[None, :]
    places = (group * ROWS + tl.arange(0, ROWS))[:, None] * n_shares + shares
    shares_largest = tl.load(statistics_ptr + places, mask=shares < n_shares, other=float("-inf"))
    shares_total = tl.load(statistics_ptr + n_groups * ROWS * n_shares + places, mask=shares < n_shares, other=0.0)
    largest, total = joined(shares_largest, shares_total)
    in_rows = there(group, inner_rows, ROWS)
    x_rows = row_pointers(x_ptr, x_strides, group, inner_rows, outer_rows, ROWS)
    y_rows = row_pointers(y_ptr, y_strides, group, inner_rows, outer_rows, ROWS)
    store_softmax(
        x_rows, y_rows, x_strides[3], y_strides[3], in_rows, share * BLOCKS, n_columns, largest, total,
        COMPUTE, BLOCKS, BLOCK_SIZE
    )  # fmt: skip


@triton.jit
def statistics_of(
    x_rows, column_stride, in_rows, first_block, n_columns,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Over BLOCKS blocks of each row: the maximum, and the sum of exp(x − maximum).

    Every lane keeps a maximum and a sum of its own until the end. GROUP elements that meet in one lane share a maximum,
    so that an element costs little more than one exponential.
    """
    LANES: tl.constexpr = BLOCK_SIZE // GROUP
    SHORT: tl.constexpr = x_rows.dtype.element_ty.primitive_bitwidth <= 16
    lowest = LOWEST_DOUBLE if COMPUTE.primitive_bitwidth == 64 else LOWEST
    largest = tl.full([ROWS, LANES], lowest, COMPUTE)
    total = tl.zeros([ROWS, LANES], COMPUTE)
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < n_columns)[None, :]
        x_pointers = x_rows + column_offsets(columns, column_stride)
        x = tl.load(x_pointers, mask=mask, other=float("-inf"), eviction_policy="evict_last").to(COMPUTE)
        x = tl.reshape(x, [ROWS, GROUP, LANES])
        larger = tl.maximum(largest, tl.max(x, axis=1))
        total *= exponential(largest - larger, SHORT)
        total += tl.sum(exponential(x - larger[:, None, :], SHORT), axis=1)
        largest = larger
    return joined(largest, total)


@triton.jit
def exponential(x, SHORT: tl.constexpr):
    """exp(x). In a SHORT dtype what is too small for a normal number is zero: a third fewer instructions."""
    return tl.exp2(x * LOG2_E) if SHORT else tl.exp(x)


@triton.jit
def joined(largest, total):
    """One maximum and one sum for each row of them."""
    row_largest = tl.max(largest, axis=1)
    return row_largest, tl.sum(total * tl.exp(largest - row_largest[:, None]), axis=1)


@triton.jit
def store_softmax(
    x_rows, y_rows, x_column_stride, y_column_stride, in_rows, first_block, n_columns, largest, total,
    COMPUTE: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """exp(x − largest) / total for BLOCKS blocks of each row. In a SHORT dtype the division is done in the exponent."""
    SHORT: tl.constexpr = x_rows.dtype.element_ty.primitive_bitwidth <= 16
    divisor = tl.log2(total)[:, None] if SHORT else 1 / total[:, None]
    for block in range(BLOCKS):
        columns = (first_block + block) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < n_columns)[None, :]
        x_pointers = x_rows + column_offsets(columns, x_column_stride)
        x = tl.load(x_pointers, mask=mask, eviction_policy="evict_first").to(COMPUTE)
        z = x - largest[:, None]
        y = tl.exp2(z * LOG2_E - divisor) if SHORT else tl.exp(z) * divisor
        tl.store(y_rows + column_offsets(columns, y_column_stride), y.to(y_rows.dtype.element_ty), mask=mask)


FORMS = Forms(
    registers=softmax_forward_kernel,
    blocks=softmax_forward_blocks_kernel,
    statistics=softmax_statistics_kernel,
    shares=softmax_forward_shares_kernel,
    numbers_per_share=2,
)


def forward_config(rows: Rows, element_bytes: int, multiprocessors: int, warp_size: int) -> RowConfig:
    if rows.columns_apart:
        return shared_out(rows, config_for_columns_apart(rows), multiprocessors)
    block_size = bucket(rows.columns)
    if block_size <= 256:
        return RowConfig(num_warps=4, ROWS=min(bucket(rows.runs.inner), 2048 // block_size), BLOCK_SIZE=block_size)
    if block_size <= 8192:
        # The row in registers saves the second exponential; 16 elements for each thread: 16384×4096 bf16 on an H200
        # takes 67.8 µs (4.0 TB/s), with 32 for each 70.9.
        return RowConfig(num_warps=max(block_size // 512, 1), BLOCK_SIZE=block_size)
    # Each thread reads eight vectors at once, which then meet in its lanes: 4096×32768 bf16 takes 134 µs on an H200,
    # 146 with sixteen warps and four vectors for each thread.
    warps = 8 if rows.in_full_vectors else 16
    # Element by element, warps of 64 threads hold so many addresses that with Triton 3.6 and 3.7 they would spill.
    block_bytes = 16 * 1024 if warp_size == 64 and not rows.in_full_vectors else 32 * 1024
    wide = RowConfig(num_warps=warps, BLOCK_SIZE=block_bytes // element_bytes, form="blocks")
    return shared_out(rows, wide, multiprocessors)


@kernels("softmax_forward")
def forward(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, dim: int) -> Operand:
    y = plan.empty_like(x)
    rows = rows_along(dim, y.shape, y.strides, x.strides)
    default = forward_config(rows, x.element_bytes, plan.multiprocessors, plan.architecture.warp_size)
    config = plan.choose(default, default.form, bucket(rows.columns), x.dtype)
    plan_forms(plan, FORMS, rows, config, rows.arguments(y=y, x=x), x.element_bytes)
    return y
