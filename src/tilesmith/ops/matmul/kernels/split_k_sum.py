"""The sum of partial products: of split-K, or over a batch whose gradient was broadcast.

Every partial product has memory of its own, and one kernel adds them in order. Without atomics, the result is the same
at every run.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.matmul.kernels.epilogue import activated, plus_addend, scaled_and_shifted, store_tile
from tilesmith.ops.matmul.kernels.tiles import batch_start, known_multiple
from tilesmith.ops.runtime.config import Config, bucket


@triton.jit(do_not_specialize=["n_partials", "partial_stride", "n_rows", "n_columns"])
def sum_partial_products_kernel(
    partials_ptr, y_ptr, z_ptr, addend_ptr, bias_ptr, scale_a_ptr, scale_b_ptr,
    y_strides, bias_stride, scale_a_stride, scale_b_stride, inner_sizes,
    n_partials, partial_stride, n_rows, n_columns,
    COLUMNS_MULTIPLE: tl.constexpr, ACTIVATION: tl.constexpr, COMPUTE: tl.constexpr,
    PARTIALS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum partials[p, matrix, row, column] over p and apply the epilogue. All dimensions but p are contiguous."""
    n_columns = known_multiple(n_columns, COLUMNS_MULTIPLE)
    n_column_tiles = tl.cdiv(n_columns, COLUMNS)
    tiles_per_matrix = tl.cdiv(n_rows, ROWS) * n_column_tiles
    matrix, tile = tl.program_id(0) // tiles_per_matrix, tl.program_id(0) % tiles_per_matrix
    rows = tile // n_column_tiles * ROWS + tl.arange(0, ROWS)
    columns = tile % n_column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    offsets = (matrix.to(tl.int64) * n_rows + rows)[:, None] * n_columns + columns[None, :]
    totals = tl.zeros([PARTIALS, ROWS, COLUMNS], COMPUTE)
    for start in range(0, n_partials, PARTIALS):
        partials = start + tl.arange(0, PARTIALS)[:, None, None]
        pointers = partials_ptr + partials.to(tl.int64) * partial_stride + offsets[None, :, :]
        totals += tl.load(pointers, mask=mask[None, :, :] & (partials < n_partials), other=0.0)
    total = tl.sum(totals, axis=0)  # [ROWS, COLUMNS]
    place = (rows, columns, n_rows, n_columns)
    z = scaled_and_shifted(
        total, (bias_ptr, scale_a_ptr, scale_b_ptr), (bias_stride, scale_a_stride, scale_b_stride), place
    )
    start = batch_start(matrix, inner_sizes, y_strides)
    if z_ptr is not None:
        store_tile(z_ptr, z, start, place, y_strides[3], y_strides[4])
    y = activated(z, ACTIVATION)
    y = plus_addend(y, addend_ptr, start, place, y_strides[3], y_strides[4])
    store_tile(y_ptr, y, start, place, y_strides[3], y_strides[4])


@dataclass(frozen=True)
class SumConfig(Config):
    """Each program sums ROWS × COLUMNS elements, PARTIALS of each at a time."""

    PARTIALS: int = 1
    ROWS: int = 4
    COLUMNS: int = 256


def sum_config(columns: int, partials: int) -> SumConfig:
    """Return tiles that load up to 64 partials at once: one at a time, each load would wait for the one before.

    A thread has at most 32 loads in flight, of four elements each where the columns allow it.
    """
    block = min(bucket(columns), 256)
    at_once = min(bucket(partials), 64 if block >= 16 else 8)
    elements = max(1024 // at_once, 128)
    block = min(block, elements)
    warps = max(at_once * elements // 1024, 4)
    return SumConfig(num_warps=warps, PARTIALS=at_once, ROWS=elements // block if block >= 16 else 64, COLUMNS=block)
