"""The backward kernels: with c = x − mean(x), r = 1/√(mean(c²) + eps) and g = dy · w,

dx = r · (g − mean(g)) − c · r³ · mean(g · c),    dw = Σ over rows of dy · c · r,    db = Σ over rows of dy.

`dsum`, where there is one, is added to dx; its sum over rows is an output too where dsum_partials_ptr is given.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.device.norm_rows import (
    GradientTensors,
    RowGroup,
    RowTensor,
    RowTile,
    Vector,
    add_to_first_and_rotate,
    columns_of_program,
    load_tile,
    load_weight,
    store_tile,
    sum_neighbours,
    three_row_means,
    two_row_means,
    without_error,
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
def _cached_row_statistics(
    tensors, group, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """Return the statistics of one row that stays in cache.

    The function reads the row a second time for its variance: a running mean per lane would take registers, sums of
    neighbours take few.
    """
    n_columns = group.sizes[0]
    sums = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    scaled_sums = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        tile = RowTile(group.rows, columns, in_row[None, :], group.sizes)
        x, scaled = _cached_x_and_scaled(tensors, tile, in_row, HAS_WEIGHT, NESTED, COMPUTE)
        sums += sum_neighbours(x, NEIGHBOURS)
        scaled_sums += sum_neighbours(scaled, NEIGHBOURS)
    mean, scaled_mean = two_row_means(sums, scaled_sums, n_columns)  # [1, 1] each
    squares = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    products = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    errors = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)  # of the mean, which is rounded
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        tile = RowTile(group.rows, columns, in_row[None, :], group.sizes)
        x, scaled = _cached_x_and_scaled(tensors, tile, in_row, HAS_WEIGHT, NESTED, COMPUTE)
        centred = tl.where(in_row[None, :], x - mean, 0.0)
        errors += sum_neighbours(centred, NEIGHBOURS)
        squares += sum_neighbours(centred * centred, NEIGHBOURS)
        products += sum_neighbours(scaled * centred, NEIGHBOURS)
    error, square, projection = three_row_means(errors, squares, products, n_columns)
    variance = without_error(square, error)
    return _statistics(mean + error, scaled_mean, variance, projection - error * scaled_mean, eps)


@triton.jit
def _cached_x_and_scaled(
    tensors, tile, in_row, HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr
):  # fmt: skip
    """Return tiles of x and of dy · w, and keep both in cache."""
    x = load_tile(tensors.x, tile, NESTED, COMPUTE, "evict_last")  # [1, BLOCK_SIZE]
    dy = load_tile(tensors.dy, tile, NESTED, COMPUTE, "evict_last")  # [1, BLOCK_SIZE]
    return x, dy * load_weight(tensors.weight, tile.columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")


@triton.jit
def _statistics(mean, scaled_mean, variance, projection, eps):
    inverse_deviation = tl.rsqrt(variance + eps)
    correction = inverse_deviation * inverse_deviation * inverse_deviation * projection
    return RowStatistics(mean, inverse_deviation, scaled_mean, correction)


@triton.jit
def _tile_gradient(
    tensors, weight, statistics, tile,
    SUM_GRADIENT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Store dx of a tile, given its rows' statistics. Return what its elements add to dw, to db and to Σ dsum."""
    x = load_tile(tensors.x, tile, NESTED, COMPUTE, EVICTION)  # [ROWS, BLOCK_SIZE]
    dy = load_tile(tensors.dy, tile, NESTED, COMPUTE, EVICTION)  # [ROWS, BLOCK_SIZE]
    centred = x - statistics.mean
    dx = statistics.inverse_deviation * (dy * weight - statistics.scaled_mean) - centred * statistics.correction
    dsum = tl.zeros_like(dy)
    if SUM_GRADIENT:
        dsum = load_tile(tensors.dsum, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        dx += dsum
    store_tile(tensors.dx, dx, tile, NESTED)
    return dy * (centred * statistics.inverse_deviation), dy, dsum


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_backward_cached_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr, dsum_ptr, dsum_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FIRST_BLOCK_SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """Persistent programs, one row at a time in blocks: read for its statistics, and again from cache for dx."""
    n_columns = sizes[0]
    tensors = GradientTensors(
        RowTensor(dy_ptr, dy_strides), RowTensor(x_ptr, x_strides), RowTensor(dx_ptr, dx_strides),
        RowTensor(dsum_ptr, dsum_strides), Vector(weight_ptr, weight_stride),
    )  # fmt: skip
    weight_gradients = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    bias_gradients = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    dsum_totals = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    first = tl.program_id(0)
    for row in tl.range(first, n_rows, tl.num_programs(0), num_stages=1):
        rows = row + tl.arange(0, 1)
        group = RowGroup(rows, n_rows, sizes)
        statistics = _cached_row_statistics(
            tensors, group, eps, HAS_WEIGHT, NESTED, COMPUTE, FIRST_BLOCK_SIZE, NEIGHBOURS
        )
        for block in tl.static_range(BLOCKS):
            columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
            in_row = columns < n_columns if block == BLOCKS - 1 else tl.full([BLOCK_SIZE], True, tl.int1)
            weight = load_weight(tensors.weight, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")  # [1, BLOCK_SIZE]
            tile = RowTile(rows, columns, in_row[None, :], sizes)
            added, dy, dsum = _tile_gradient(
                tensors, weight, statistics, tile, SUM_GRADIENT, NESTED, COMPUTE, "evict_first"
            )
            if WEIGHT_GRADIENT:
                weight_gradients = add_to_first_and_rotate(weight_gradients, added)
            if BIAS_GRADIENT:
                bias_gradients = add_to_first_and_rotate(bias_gradients, dy)
            if dsum_partials_ptr is not None:
                dsum_totals = add_to_first_and_rotate(dsum_totals, dsum)
    for block in tl.static_range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
        if WEIGHT_GRADIENT:
            tl.store(weight_partials_ptr + first * n_columns + columns, weight_gradients[block], columns < n_columns)
        if BIAS_GRADIENT:
            tl.store(bias_partials_ptr + first * n_columns + columns, bias_gradients[block], columns < n_columns)
        if dsum_partials_ptr is not None:
            tl.store(dsum_partials_ptr + first * n_columns + columns, dsum_totals[block], columns < n_columns)


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_row_statistics_kernel(
    dy_ptr, x_ptr, statistics_ptr, weight_ptr, dy_strides, x_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First of two sweeps: the statistics of each row, four numbers after each other."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    absent = RowTensor(None, None)
    tensors = GradientTensors(
        RowTensor(dy_ptr, dy_strides), RowTensor(x_ptr, x_strides), absent, absent, Vector(weight_ptr, weight_stride)
    )
    group = RowGroup(rows, n_rows, sizes)
    statistics = _row_statistics(tensors, group, eps, HAS_WEIGHT, NESTED, COMPUTE, BLOCK_SIZE)
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
        added, dy, dsum = _tile_gradient(tensors, weight, statistics, tile, SUM_GRADIENT, NESTED, COMPUTE, "")
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
