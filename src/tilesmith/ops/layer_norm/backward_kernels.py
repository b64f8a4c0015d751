"""The backward kernels: with c = x − mean(x), r = 1/√(mean(c²) + eps) and g = dy · w,

dx = r · (g − mean(g)) − c · r³ · mean(g · c),    dw = Σ over rows of dy · c · r,    db = Σ over rows of dy.

`dsum`, where there is one, is added to dx; its sum over rows is an output too where dsum_partials_ptr is given.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.device.norms.rows import (
    GradientTensors,
    RowGroup,
    RowTensor,
    RowTile,
    Vector,
    columns_of_program,
    load_tile,
    load_weight,
    store_tile,
    two_row_means,
)
from tilesmith.ops.device.partial_sums import sum_partials_kernel
from tilesmith.ops.layer_norm.welford import columns_per_lane, merge_lanes, product_of_steps, step_mean


class RowStatistics(NamedTuple):
    """What dx of a row depends on beside the element itself: [ROWS, 1] each."""

    mean: Any
    inverse_deviation: Any  # r
    scaled_mean: Any  # mean(g)
    correction: Any  # r³ · mean(g · c)


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr, dsum_ptr, dsum_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
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
        scaled = dy * weight
        mean, scaled_mean = two_row_means(x, scaled, n_columns)  # [ROWS, 1] each
        centred = tl.where(mask, x - mean, 0.0)
        # The forward corrects the mean's rounding; here that spills registers, and dx hardly depends on it.
        variance, projection = two_row_means(centred * centred, scaled * centred, n_columns)
        inverse_deviation = tl.rsqrt(variance + eps)
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
def _row_statistics(
    tensors, group, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Return the statistics of rows that are read once, block by block."""
    rows, n_columns = group.rows, group.sizes[0]
    means = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    scaled_means = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    squares = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    products = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    blocks_read = tl.zeros([1, 1], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = (rows < group.n_rows)[:, None] & in_row[None, :]
        tile = RowTile(rows, columns, mask, group.sizes)
        x = load_tile(tensors.x, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        dy = load_tile(tensors.dy, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        scaled = dy * load_weight(tensors.weight, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        blocks_read += 1
        inverse_count = 1 / blocks_read
        step, means = step_mean(means, x, mask, inverse_count)
        scaled_step, scaled_means = step_mean(scaled_means, scaled, mask, inverse_count)
        squares += product_of_steps(step, step, inverse_count)
        products += product_of_steps(step, scaled_step, inverse_count)
    counts = columns_per_lane(n_columns, BLOCK_SIZE, COMPUTE)  # [1, BLOCK_SIZE]
    mean, apart = merge_lanes(means, counts, n_columns)  # [ROWS, 1], [ROWS, BLOCK_SIZE]
    scaled_mean, scaled_apart = merge_lanes(scaled_means, counts, n_columns)
    variance, projection = two_row_means(
        squares + counts * (apart * apart), products + counts * (apart * scaled_apart), n_columns
    )
    return _statistics(mean, scaled_mean, variance, projection, eps)


@triton.jit
def _statistics(mean, scaled_mean, variance, projection, eps):
    inverse_deviation = tl.rsqrt(variance + eps)
    correction = inverse_deviation * inverse_deviation * inverse_deviation * projection
    return RowStatistics(mean, inverse_deviation, scaled_mean, correction)


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
    dy_ptr, x_ptr, statistics_ptr, weight_ptr, dy_strides, x_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First of two sweeps: the statistics of each row, four numbers after each other."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    absent = RowTensor(None, None)
    tensors = GradientTensors(
        RowTensor(dy_ptr, dy_strides), RowTensor(x_ptr, x_strides), absent, absent, Vector(weight_ptr, weight_stride)
    )
    group = RowGroup(rows, n_rows, sizes)
    statistics = _row_statistics(tensors, group, eps, HAS_WEIGHT, NESTED, COMPUTE, BLOCK_SIZE)  # each [ROWS, 1]
    pointers = statistics_ptr + 4 * rows[:, None]
    mask = (rows < n_rows)[:, None]
    tl.store(pointers, statistics.mean, mask=mask)
    tl.store(pointers + 1, statistics.inverse_deviation, mask=mask)
    tl.store(pointers + 2, statistics.scaled_mean, mask=mask)
    tl.store(pointers + 3, statistics.correction, mask=mask)


@triton.jit(do_not_specialize=["n_rows", "rows_per_part"])
def layer_norm_backward_tiles_kernel(
    dy_ptr, x_ptr, dx_ptr, statistics_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr,
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
        pointers = statistics_ptr + 4 * rows[:, None]
        mean = tl.load(pointers, mask=in_rows, other=0.0)  # [ROWS, 1]
        inverse_deviation = tl.load(pointers + 1, mask=in_rows, other=0.0)  # [ROWS, 1]
        scaled_mean = tl.load(pointers + 2, mask=in_rows, other=0.0)  # [ROWS, 1]
        correction = tl.load(pointers + 3, mask=in_rows, other=0.0)  # [ROWS, 1]
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
