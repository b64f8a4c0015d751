"""The backward kernels: with c = x − mean(x), r = 1/√(mean(c²) + eps) and g = dy · w,

dx = r · (g − mean(g)) − c · r³ · mean(g · c),    dw = Σ over rows of dy · c · r,    db = Σ over rows of dy.

The forward kept mean(x) and r of each row (`statistics_ptr`), so one reduction for each row finds both means.
`dsum`, where there is one, is added to dx; its sum over rows is an output too where dsum_partials_ptr is given.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.device.norms.rows import (
    GradientTensors,
    RowTensor,
    RowTile,
    Vector,
    columns_of_program,
    load_statistics,
    load_tile,
    load_weight,
    store_statistics,
    store_tile,
    two_row_means,
)
from tilesmith.ops.device.partial_sums import sum_partials_kernel


class RowStatistics(NamedTuple):
    """The statistics of a row that every element of dx needs: [ROWS, 1] each."""

    mean: Any
    inverse_deviation: Any  # r
    scaled_mean: Any  # mean(g)
    correction: Any  # r³ · mean(g · c)


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr, dsum_ptr, dsum_partials_ptr,
    statistics_ptr, dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Persistent programs, each through every n-th group of ROWS whole rows."""
    n_columns = sizes[0]
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    weight = load_weight(Vector(weight_ptr, weight_stride), columns, in_row, HAS_WEIGHT, COMPUTE, "")  # [1, BLOCK_SIZE]
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    bias_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    dsum_total = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    first = tl.program_id(0).to(tl.int64)
    for group in tl.range(first, tl.cdiv(n_rows, ROWS), tl.num_programs(0), num_stages=PIPELINE):
        rows = group * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        tile = RowTile(rows, columns, mask, sizes)
        x = load_tile(RowTensor(x_ptr, x_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        dy = load_tile(RowTensor(dy_ptr, dy_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        if SUM_GRADIENT:
            dsum = load_tile(RowTensor(dsum_ptr, dsum_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        mean, inverse_deviation = load_statistics(statistics_ptr, rows, rows < n_rows)  # [ROWS] each
        mean, inverse_deviation = mean[:, None], inverse_deviation[:, None]
        scaled = dy * weight
        centred = x - mean
        scaled_mean, projection = two_row_means(scaled, scaled * centred, n_columns)  # [ROWS, 1] each
        normed = centred * inverse_deviation
        dx = inverse_deviation * (scaled - scaled_mean - normed * (inverse_deviation * projection))
        if SUM_GRADIENT:
            dx += dsum
        store_tile(RowTensor(dx_ptr, dx_strides), dx, tile, NESTED)
        if WEIGHT_GRADIENT:
            weight_gradient += dy * normed
        if BIAS_GRADIENT:
            bias_gradient += dy
        if dsum_partials_ptr is not None:
            dsum_total += dsum
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + first * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)
    if BIAS_GRADIENT:
        tl.store(bias_partials_ptr + first * n_columns + columns, tl.sum(bias_gradient, axis=0), mask=in_row)
    if dsum_partials_ptr is not None:
        tl.store(dsum_partials_ptr + first * n_columns + columns, tl.sum(dsum_total, axis=0), mask=in_row)


@triton.jit
def _tile_gradient(
    tensors, weight, statistics, tile,
    SUM_GRADIENT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Store dx of a tile, given its rows' statistics. Return what its elements add to dw, to db and to Σ dsum."""
    x = load_tile(tensors.x, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
    dy = load_tile(tensors.dy, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
    centred = x - statistics.mean
    dx = statistics.inverse_deviation * (dy * weight - statistics.scaled_mean) - centred * statistics.correction
    dsum = tl.zeros_like(dy)
    if SUM_GRADIENT:
        dsum = load_tile(tensors.dsum, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        dx += dsum
    store_tile(tensors.dx, dx, tile, NESTED)
    return dy * (centred * statistics.inverse_deviation), dy, dsum


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_row_statistics_kernel(
    dy_ptr, x_ptr, statistics_ptr, row_results_ptr, weight_ptr, dy_strides, x_strides, weight_stride, n_rows, sizes,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First of two sweeps: mean(g) and r³ · mean(g · c) of each row, which is read block by block."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    in_rows = (rows < n_rows)[:, None]
    mean, inverse_deviation = load_statistics(statistics_ptr, rows[:, None], in_rows)  # [ROWS, 1] each
    scaled_sums = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    products = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        tile = RowTile(rows, columns, in_rows & in_row[None, :], sizes)
        x = load_tile(RowTensor(x_ptr, x_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        dy = load_tile(RowTensor(dy_ptr, dy_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        weight = load_weight(Vector(weight_ptr, weight_stride), columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        scaled = dy * weight
        scaled_sums += scaled
        products += scaled * (x - mean)
    scaled_mean, projection = two_row_means(scaled_sums, products, n_columns)  # [ROWS, 1] each
    correction = inverse_deviation * inverse_deviation * inverse_deviation * projection
    store_statistics(row_results_ptr, rows[:, None], scaled_mean, correction, in_rows)


@triton.jit(do_not_specialize=["n_rows", "rows_per_part"])
def layer_norm_backward_tiles_kernel(
    dy_ptr, x_ptr, dx_ptr, statistics_ptr, row_results_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr,
    dsum_ptr, dsum_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, rows_per_part, sizes,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Second of two sweeps: dx in tiles, and one part of the rows' partial sums for a block of columns."""
    n_columns = sizes[0]
    tensors = GradientTensors(
        RowTensor(dy_ptr, dy_strides), RowTensor(x_ptr, x_strides), RowTensor(dx_ptr, dx_strides),
        RowTensor(dsum_ptr, dsum_strides), Vector(weight_ptr, weight_stride),
    )  # fmt: skip
    columns, in_row, weight, part = columns_of_program(tensors.weight, n_columns, HAS_WEIGHT, COMPUTE, BLOCK_SIZE)
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    bias_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    dsum_total = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, rows_per_part, ROWS):
        rows = part * rows_per_part + start + tl.arange(0, ROWS)
        in_rows = (rows < n_rows)[:, None]
        mean, inverse_deviation = load_statistics(statistics_ptr, rows[:, None], in_rows)  # [ROWS, 1] each
        scaled_mean, correction = load_statistics(row_results_ptr, rows[:, None], in_rows)  # [ROWS, 1] each
        statistics = RowStatistics(mean, inverse_deviation, scaled_mean, correction)
        tile = RowTile(rows, columns, in_rows & in_row[None, :], sizes)
        added, dy, dsum = _tile_gradient(tensors, weight, statistics, tile, SUM_GRADIENT, NESTED, COMPUTE)
        if WEIGHT_GRADIENT:
            weight_gradient += added
        if BIAS_GRADIENT:
            bias_gradient += dy
        if dsum_partials_ptr is not None:
            dsum_total += dsum
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + part * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)
    if BIAS_GRADIENT:
        tl.store(bias_partials_ptr + part * n_columns + columns, tl.sum(bias_gradient, axis=0), mask=in_row)
    if dsum_partials_ptr is not None:
        tl.store(dsum_partials_ptr + part * n_columns + columns, tl.sum(dsum_total, axis=0), mask=in_row)


@triton.jit(do_not_specialize=["n_partials"])
def sum_several_partials_kernel(
    weight_partials_ptr, bias_partials_ptr, dsum_partials_ptr, dweight_ptr, dbias_ptr, dsum_total_ptr,
    n_partials, n_columns, COMPUTE: tl.constexpr, PARTIALS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add up the partial sums of weight, bias and, if given, dsum; the grid's second axis says which."""
    which = tl.program_id(1)
    if which == 0:
        sum_partials_kernel(
            weight_partials_ptr, dweight_ptr, n_partials, n_columns, n_columns, 1, COMPUTE, PARTIALS, COLUMNS
        )
    elif dsum_partials_ptr is None or which == 1:
        sum_partials_kernel(
            bias_partials_ptr, dbias_ptr, n_partials, n_columns, n_columns, 1, COMPUTE, PARTIALS, COLUMNS
        )
    else:
        sum_partials_kernel(
            dsum_partials_ptr, dsum_total_ptr, n_partials, n_columns, n_columns, 1, COMPUTE, PARTIALS, COLUMNS
        )
