"""The kernels of norms of any width: the forward, the backward, and copies of the parameters for the forward.

`any_width.py` says when they run, and how they cut rows into chunks.
"""

import triton
import triton.language as tl

from tilesmith.ops.device.norms.rows import (
    ONE_PLUS,
    add_to_first_and_rotate,
    load_statistics,
    plus_one,
    store_statistics,
    without_error,
)
from tilesmith.ops.device.row_chunks import (
    chunk_columns,
    chunk_pointers,
    cut_row,
    edge_lanes,
    lane_sums,
    load_chunks,
    load_parameter,
    packed_again,
    two_sums,
)
from tilesmith.ops.device.teams import hear_team, tell_team


@triton.jit
def norm_parameter_copies_kernel(
    weight_ptr, bias_ptr, weight_copies_ptr, bias_copies_ptr, weight_stride, bias_stride, n_columns, copy_stride,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Copy both parameters without their first columns: copy `lead` starts with column `lead`."""
    lead = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE]
    mask = columns < n_columns - lead
    places = lead * copy_stride + columns
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + (columns + lead) * weight_stride, mask=mask)
        tl.store(weight_copies_ptr + places, weight, mask=mask)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + (columns + lead) * bias_stride, mask=mask)
        tl.store(bias_copies_ptr + places, bias, mask=mask)


@triton.jit
def _parameter_chunk(
    pointer, stride, copy_stride, lead, start, in_part, place: tl.constexpr,
    COPIES: tl.constexpr, COMPUTE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return a parameter at the columns of one chunk, from its copy where there are copies."""
    columns = chunk_columns(place, CHUNK)
    if COPIES:
        pointers = chunk_pointers(pointer + lead * copy_stride + start, place, CHUNK)
    else:
        pointers = pointer + (lead + start + columns) * stride
    return tl.load(pointers, mask=columns < in_part, other=0.0, eviction_policy="evict_last").to(COMPUTE)  # [CHUNK]


@triton.jit(do_not_specialize=["n_rows", "n_parts"])
def norm_any_width_forward_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, residual_ptr, sum_ptr, statistics_ptr, words_ptr,
    x_strides, y_strides, weight_stride, bias_stride, residual_strides, sum_strides, copy_stride,
    n_rows, n_parts, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, EDGES: tl.constexpr, TOLD: tl.constexpr, COPIES: tl.constexpr, COMPUTE: tl.constexpr,
    VECTOR: tl.constexpr, PARTS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One row, or one part of a row, per program. With CENTRE the mean is subtracted first: LayerNorm.

    With PARTS above 1 the programs of a row wait for each other; the first part has the edges.
    """
    n_columns = sizes[0]
    row, part = tl.program_id(0).to(tl.int64), 0
    if PARTS > 1:
        row, part = row // n_parts, tl.program_id(0) % n_parts
    lead, length = cut_row(y_ptr + row * y_strides[0], n_columns, VECTOR, EDGES, TOLD)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    start, count = 0, n_columns
    if PARTS > 1:
        is_edge &= part == 0
        start = part * (CHUNKS * BLOCK_SIZE)
        count = tl.maximum(columns_of_parts(part, length, n_columns, CHUNKS * BLOCK_SIZE), 1)
    first, in_part = lead + start, length - start
    x_row = x_ptr + row * x_strides[0]
    x = load_chunks(x_row + first, in_part, 0.0, BLOCK_SIZE, CHUNKS)
    x_edges = tl.zeros([BLOCK_SIZE // VECTOR], COMPUTE)
    if EDGES:
        x_edges = tl.load(x_row + edges, mask=is_edge, other=0.0).to(COMPUTE)  # [BLOCK_SIZE // VECTOR]
    if HAS_RESIDUAL:
        residual_row, sum_row = residual_ptr + row * residual_strides[0], sum_ptr + row * sum_strides[0]
        residual = load_chunks(residual_row + first, in_part, 0.0, BLOCK_SIZE, CHUNKS)
        totals = ()
        for place in tl.static_range(CHUNKS):
            total = (x[place].to(COMPUTE) + residual[place].to(COMPUTE)).to(sum_ptr.dtype.element_ty)
            mask = chunk_columns(place, BLOCK_SIZE) < in_part
            tl.store(chunk_pointers(sum_row + first, place, BLOCK_SIZE), total, mask=mask)
            totals = totals + (total,)  # type: ignore[assignment]  # noqa: RUF005  # Triton does not unpack
        x = totals
        if EDGES:
            residual_edges = tl.load(residual_row + edges, mask=is_edge, other=0.0).to(COMPUTE)
            total = (x_edges + residual_edges).to(sum_ptr.dtype.element_ty)
            tl.store(sum_row + edges, total, mask=is_edge)
            x_edges = total.to(COMPUTE)
    sums, squares = tl.zeros([BLOCK_SIZE], COMPUTE), tl.zeros([BLOCK_SIZE], COMPUTE)
    if CENTRE:
        for place in tl.static_range(CHUNKS):
            sums += x[place].to(COMPUTE)
        mean = tl.sum(lane_sums(sums, x_edges, VECTOR, EDGES), axis=0) / count  # rounded
        sums = tl.zeros([BLOCK_SIZE], COMPUTE)
        for place in tl.static_range(CHUNKS):
            apart = tl.where(chunk_columns(place, BLOCK_SIZE) < in_part, x[place].to(COMPUTE) - mean, 0.0)
            sums += apart
            squares += apart * apart
        apart = tl.where(is_edge, x_edges - mean, 0.0)
        error, square = two_sums(
            lane_sums(sums, apart, VECTOR, EDGES), lane_sums(squares, apart * apart, VECTOR, EDGES)
        )  # fmt: skip
        error = error / count
        variance, mean = without_error(square / count, error), mean + error
    else:
        for place in tl.static_range(CHUNKS):
            value = x[place].to(COMPUTE)
            squares += value * value
        variance = tl.sum(lane_sums(squares, x_edges * x_edges, VECTOR, EDGES), axis=0) / count
        mean = tl.zeros_like(variance)
    if PARTS > 1:
        words = words_ptr + row * (2 * n_parts)
        tell_team(words + part, mean)
        tell_team(words + n_parts + part, variance)
        means, variances = hear_team(words, n_parts, 2, PARTS)  # [PARTS] each
        counts = columns_of_parts(tl.arange(0, PARTS), length, n_columns, CHUNKS * BLOCK_SIZE)
        mean = mean_of_parts(means, counts, n_columns)
        variance = tl.sum(counts * (variances + (means - mean) * (means - mean)), axis=0) / n_columns
    factor = tl.rsqrt(variance + eps)
    if statistics_ptr is not None:
        store_statistics(statistics_ptr, row, mean, factor, part == 0)
    y_row = y_ptr + row * y_strides[0]
    for place in tl.static_range(CHUNKS):
        y = (x[place].to(COMPUTE) - mean) * factor if CENTRE else x[place].to(COMPUTE) * factor
        if HAS_WEIGHT:
            weight = _parameter_chunk(
                weight_ptr, weight_stride, copy_stride, lead, start, in_part, place, COPIES, COMPUTE, BLOCK_SIZE
            )
            y *= plus_one(weight, HAS_WEIGHT)
        if HAS_BIAS:
            y += _parameter_chunk(
                bias_ptr, bias_stride, copy_stride, lead, start, in_part, place, COPIES, COMPUTE, BLOCK_SIZE
            )
        if RELU:
            y = tl.where(y <= 0, 0.0, y)  # keeps NaN, as PyTorch does
        y_pointers = chunk_pointers(y_row + first, place, BLOCK_SIZE)
        tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=chunk_columns(place, BLOCK_SIZE) < in_part)
    if EDGES:
        y = (x_edges - mean) * factor if CENTRE else x_edges * factor
        if HAS_WEIGHT:  # the first copy is whole
            weight = parameter_at(weight_ptr, 1 if COPIES else weight_stride, edges, is_edge, COMPUTE)
            y *= plus_one(weight, HAS_WEIGHT)
        if HAS_BIAS:
            y += parameter_at(bias_ptr, 1 if COPIES else bias_stride, edges, is_edge, COMPUTE)
        if RELU:
            y = tl.where(y <= 0, 0.0, y)
        tl.store(y_row + edges, y.to(y_ptr.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["n_rows"])
def norm_any_width_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, dsum_ptr, statistics_ptr, weight_partials_ptr, bias_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, EDGES: tl.constexpr, TOLD: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr,
    PACKED: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Persistent programs of one row at a time. The edges of the next row are loaded before a row is computed."""
    n_columns = sizes[0]
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    lead, length = cut_row(dx_ptr + first * dx_strides[0], n_columns, VECTOR, EDGES, TOLD)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    weight = (tl.full([BLOCK_SIZE], 1.0, COMPUTE),) * CHUNKS
    weight_edges = tl.full([BLOCK_SIZE // VECTOR], 1.0, COMPUTE)
    if HAS_WEIGHT:
        weight = load_parameter(weight_ptr + lead * weight_stride, weight_stride, length, BLOCK_SIZE, CHUNKS)
        weight = chunks_plus_one(weight, HAS_WEIGHT, COMPUTE)
        if EDGES:
            weight_edges = plus_one(parameter_at(weight_ptr, weight_stride, edges, is_edge, COMPUTE), HAS_WEIGHT)
    weight_gradient = (tl.zeros([BLOCK_SIZE], COMPUTE),) * CHUNKS
    bias_gradient = (tl.zeros([BLOCK_SIZE], COMPUTE),) * CHUNKS
    weight_gradient_edges, bias_gradient_edges = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    x_edges, dy_edges = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    if EDGES:
        exists = is_edge & (first < n_rows)
        next_x = tl.load(x_ptr + first * x_strides[0] + edges, mask=exists, other=0.0)
        next_dy = tl.load(dy_ptr + first * dy_strides[0] + edges, mask=exists, other=0.0)
    mean = tl.zeros([1], COMPUTE)
    for row in tl.range(first, n_rows, programs, num_stages=PIPELINE):
        x_row, dy_row = x_ptr + row * x_strides[0], dy_ptr + row * dy_strides[0]
        x = load_chunks(x_row + lead, length, 0.0, BLOCK_SIZE, CHUNKS)
        dy = load_chunks(dy_row + lead, length, 0.0, BLOCK_SIZE, CHUNKS)
        x_kept, dy_kept = packed_again(x, PACKED), packed_again(dy, PACKED)
        if EDGES:
            x_edges, dy_edges = next_x.to(COMPUTE), next_dy.to(COMPUTE)  # [BLOCK_SIZE // VECTOR]
            goes_on = is_edge & (row + programs < n_rows)
            next_x = tl.load(x_row + programs * x_strides[0] + edges, mask=goes_on, other=0.0)
            next_dy = tl.load(dy_row + programs * dy_strides[0] + edges, mask=goes_on, other=0.0)
            if RELU:
                dy_edges = tl.where(x_edges * weight_edges <= 0, 0.0, dy_edges)
        of_edges = x_edges, dy_edges * weight_edges, is_edge
        if CENTRE:
            mean, factor = load_statistics(statistics_ptr, row + tl.arange(0, 1), True)  # tensors are pipelined
        first_total, product = part_sums(x, dy, weight, mean, of_edges, RELU, CENTRE, EDGES, VECTOR)
        scaled_mean = tl.zeros_like(mean)
        if CENTRE:
            scaled_mean = first_total / n_columns
        else:
            factor = tl.rsqrt(first_total / n_columns + eps)
        statistics = mean, factor, scaled_mean, factor * (product / n_columns)
        dx_row = dx_ptr + row * dx_strides[0]
        dsum, dsum_edges = (), ()
        if dsum_ptr is not None:
            dsum_row = dsum_ptr + row * dsum_strides[0]
            dsum = load_chunks(dsum_row + lead, length, 0.0, BLOCK_SIZE, CHUNKS)
            if EDGES:
                dsum_edges = (tl.load(dsum_row + edges, mask=is_edge, other=0.0),)  # type: ignore[assignment]  # Triton unrolls
        weight_gradient, bias_gradient = store_gradient(
            dx_row + lead, (x_kept, dy_kept, weight, dsum), statistics, length,
            (weight_gradient, bias_gradient), RELU, WEIGHT_GRADIENT, BIAS_GRADIENT, COMPUTE,
        )  # fmt: skip
        if EDGES:
            normed = store_edge_gradient(dx_row + edges, dsum_edges, of_edges, statistics)
            weight_gradient_edges += dy_edges * normed
            bias_gradient_edges += dy_edges
    if WEIGHT_GRADIENT:
        partials = weight_partials_ptr + first * n_columns
        store_partials(partials, weight_gradient, weight_gradient_edges, lead, length, edges, is_edge, EDGES)
    if BIAS_GRADIENT:
        partials = bias_partials_ptr + first * n_columns
        store_partials(partials, bias_gradient, bias_gradient_edges, lead, length, edges, is_edge, EDGES)


@triton.jit
def chunks_plus_one(chunks, HAS_WEIGHT: tl.constexpr, COMPUTE: tl.constexpr):
    """Return a weight's chunks as the factors that HAS_WEIGHT says: as they are in memory, or 1 + weight in COMPUTE."""
    if HAS_WEIGHT == ONE_PLUS:
        factors = ()
        for place in tl.static_range(len(chunks)):
            factors = factors + (chunks[place].to(COMPUTE) + 1.0,)  # type: ignore[assignment]  # noqa: RUF005  # as above
        chunks = factors
    return chunks


@triton.jit
def part_sums(
    x, dy, weight, mean, of_edges, RELU: tl.constexpr, CENTRE: tl.constexpr, EDGES: tl.constexpr, VECTOR: tl.constexpr
):
    """Return two sums of a row, or of one part of it, with g = dy · w: with CENTRE Σ g and Σ g · (x − mean), else Σ x²
    and Σ g · x. Outside the row g and x are zero.
    """
    x_edges, scaled_edges, _ = of_edges
    COMPUTE: tl.constexpr = x_edges.dtype
    CHUNK: tl.constexpr = x[0].shape[0]
    sums, products = tl.zeros([CHUNK], COMPUTE), tl.zeros([CHUNK], COMPUTE)
    for place in tl.static_range(len(x)):
        scaled = masked_dy(x, dy, weight, place, RELU, COMPUTE) * weight[place].to(COMPUTE)
        value = x[place].to(COMPUTE) - mean if CENTRE else x[place].to(COMPUTE)
        sums += scaled if CENTRE else value * value
        products += scaled * value
    value = x_edges - mean if CENTRE else x_edges
    first = scaled_edges if CENTRE else value * value
    return two_sums(lane_sums(sums, first, VECTOR, EDGES), lane_sums(products, scaled_edges * value, VECTOR, EDGES))


@triton.jit
def store_gradient(
    dx_ptr, of_row, statistics, length, sums,
    RELU: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Store dx of a row, or of one part of it. Return the sums of dw and db with what the row adds to them.

    `of_row` are x, dy, the weight and dsum in chunks. dsum, which is added to dx, may be empty.
    """
    x, dy, weight, dsum = of_row
    weight_gradient, bias_gradient = sums
    mean, factor, scaled_mean, correction = statistics
    CHUNK: tl.constexpr = x[0].shape[0]
    for place in tl.static_range(len(x)):
        given = masked_dy(x, dy, weight, place, RELU, COMPUTE)
        normed = (x[place].to(COMPUTE) - mean) * factor
        dx = factor * (given * weight[place].to(COMPUTE) - scaled_mean - normed * correction)
        mask = chunk_columns(place, CHUNK) < length
        if len(dsum) > 0:
            dx += dsum[place].to(COMPUTE)
        tl.store(chunk_pointers(dx_ptr, place, CHUNK), dx.to(dx_ptr.dtype.element_ty), mask=mask)
        # After one turn for each chunk, every sum is in its place again.
        if WEIGHT_GRADIENT:
            weight_gradient = add_to_first_and_rotate(weight_gradient, given * normed)
        if BIAS_GRADIENT:
            bias_gradient = add_to_first_and_rotate(bias_gradient, given)
    return weight_gradient, bias_gradient


@triton.jit
def store_edge_gradient(dx_ptr, dsum_edges, of_edges, statistics):
    """Store dx at the edges of a row, to which `dx_ptr` points. Return the normed x there.

    `dsum_edges` is empty, or holds dsum at the edges.
    """
    x_edges, scaled_edges, is_edge = of_edges
    mean, factor, scaled_mean, correction = statistics
    normed = (x_edges - mean) * factor
    dx = factor * (scaled_edges - scaled_mean - normed * correction)
    if len(dsum_edges) > 0:
        dx += dsum_edges[0].to(dx.dtype)
    tl.store(dx_ptr, dx.to(dx_ptr.dtype.element_ty), mask=is_edge)
    return normed


@triton.jit
def columns_of_parts(parts, length, n_columns, SPAN: tl.constexpr):
    """Return how many columns of a row each of these parts has: up to SPAN of its middle; the first has the edges."""
    of_middle = tl.minimum(tl.maximum(length - parts * SPAN, 0), SPAN)
    return of_middle + tl.where(parts == 0, n_columns - length, 0)


@triton.jit
def mean_of_parts(means, counts, n_columns):
    """Return the mean of a row from those of its parts."""
    mean = tl.sum(counts * means, axis=0) / n_columns  # rounded
    return mean + tl.sum(counts * (means - mean), axis=0) / n_columns


@triton.jit
def masked_dy(x, dy, weight, place: tl.constexpr, RELU: tl.constexpr, COMPUTE: tl.constexpr):
    """Return a chunk of dy; with RELU zeros where the norm's result is not positive."""
    given = dy[place].to(COMPUTE)
    if RELU:
        given = tl.where(x[place].to(COMPUTE) * weight[place].to(COMPUTE) <= 0, 0.0, given)
    return given  # [BLOCK_SIZE]


@triton.jit
def store_partials(partials, sums, sums_of_edges, lead, length, edges, is_edge, EDGES: tl.constexpr):
    """Store a program's sums over its rows."""
    for place in tl.static_range(len(sums)):
        columns = chunk_columns(place, sums[place].shape[0])
        tl.store(partials + lead + columns, sums[place], mask=columns < length)
    if EDGES:
        tl.store(partials + edges, sums_of_edges, mask=is_edge)


@triton.jit
def parameter_at(pointer, stride, columns, mask, COMPUTE: tl.constexpr):
    """Return a parameter at some columns."""
    return tl.load(pointer + columns * stride, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)
