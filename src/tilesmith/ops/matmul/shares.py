"""The sum of partial products: of shares of the depth that programs did apart, or of a batch that shared an operand.

Each was left in memory of its own, and they are added in order: no atomics, so the result is the same at every run.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.matmul.tiles import activated, batch_start, known_multiple, scaled_and_shifted, store_tile
from tilesmith.ops.runtime.config import Config, bucket


@triton.jit(do_not_specialize=["n_partials", "partial_stride", "n_rows", "n_columns"])
def sum_shares_kernel(
    partials_ptr, y_ptr, z_ptr, bias_ptr, scale_a_ptr, scale_b_ptr,
    y_strides, bias_stride, scale_a_stride, scale_b_stride, inner_sizes,
    n_partials, partial_stride, n_rows, n_columns,
    COLUMNS_MULTIPLE: tl.constexpr, ACTIVATION: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partials[p, matrix, row, column], contiguous but for p, summed over p and finished."""
    n_columns = known_multiple(n_columns, COLUMNS_MULTIPLE)
    n_column_tiles = tl.cdiv(n_columns, COLUMNS)
    tiles_per_matrix = tl.cdiv(n_rows, ROWS) * n_column_tiles
    matrix, tile = tl.program_id(0) // tiles_per_matrix, tl.program_id(0) % tiles_per_matrix
    rows = tile // n_column_tiles * ROWS + tl.arange(0, ROWS)
    columns = tile % n_column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    offsets = (matrix.to(tl.int64) * n_rows + rows)[:, None] * n_columns + columns[None, :]
    total = tl.zeros([ROWS, COLUMNS], COMPUTE)
    for partial in range(n_partials):
        pointers = partials_ptr + tl.cast(partial, tl.int64) * partial_stride + offsets
        total += tl.load(pointers, mask=mask, other=0.0)
    z = scaled_and_shifted(
        total, bias_ptr, scale_a_ptr, scale_b_ptr, bias_stride, scale_a_stride, scale_b_stride, rows, columns,
        n_rows, n_columns,
    )  # fmt: skip
    start = batch_start(matrix, inner_sizes, y_strides)
    if z_ptr is not None:
        store_tile(z_ptr, z, start, rows, columns, n_rows, n_columns, y_strides[3], y_strides[4])
    y = activated(z, ACTIVATION)
    store_tile(y_ptr, y, start, rows, columns, n_rows, n_columns, y_strides[3], y_strides[4])


@dataclass(frozen=True)
class SumConfig(Config):
    """Each program sums ROWS × COLUMNS elements."""

    ROWS: int = 4
    COLUMNS: int = 256


def sum_config(columns: int) -> SumConfig:
    """1024 elements per program of 128 threads: few programs would leave most of the GPU idle over small results."""
    block = min(bucket(columns), 256)
    return SumConfig(num_warps=4, ROWS=1024 // block if block >= 16 else 64, COLUMNS=block)
