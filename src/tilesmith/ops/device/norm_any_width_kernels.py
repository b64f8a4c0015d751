"""The kernels of norms of any width: the forward, the backward, and copies of the parameters for the forward.

`norm_any_width.py` says when they run, and how they cut rows into chunks.
"""

import triton
import triton.language as tl

from tilesmith.ops.device.aligned_rows import cut_rows
from tilesmith.ops.device.norm_rows import add_to_first_and_rotate, without_error
from tilesmith.ops.device.row_chunks import (
    chunk_columns,
    chunk_pointers,
    edge_lanes,
    lane_sums,
    load_chunks,
    load_parameter,
    packed_again,
    three_sums,
    two_sums,
)


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
    pointer, stride, copy_stride, lead, length, place: tl.constexpr,
    COPIES: tl.constexpr, COMPUTE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return a parameter at the columns of one chunk, from its copy where there are copies."""
    columns = chunk_columns(place, CHUNK)
    if COPIES:
        pointers = chunk_pointers(pointer + lead * copy_stride, place, CHUNK)
    else:
        pointers = pointer + (lead + columns) * stride
    return tl.load(pointers, mask=columns < length, other=0.0, eviction_policy="evict_last").to(COMPUTE)  # [CHUNK]


@triton.jit(do_not_specialize=["n_rows"])
def norm_any_width_forward_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, residual_ptr, sum_ptr,
    x_strides, y_strides, weight_stride, bias_stride, residual_strides, sum_strides, copy_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, EDGES: tl.constexpr, COPIES: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One row per program. With CENTRE the mean is subtracted first: LayerNorm."""
    n_columns = sizes[0]
    row = tl.program_id(0).to(tl.int64)
    lead, length = cut_rows(y_ptr + row * y_strides[0], n_columns, VECTOR, EDGES)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    x_row = x_ptr + row * x_strides[0]
    x = load_chunks(x_row + lead, length, 0.0, BLOCK_SIZE, CHUNKS)
    x_edges = tl.zeros([BLOCK_SIZE // VECTOR], COMPUTE)
    if EDGES:
        x_edges = tl.load(x_row + edges, mask=is_edge, other=0.0).to(COMPUTE)  # [BLOCK_SIZE // VECTOR]
    if HAS_RESIDUAL:
        residual_row, sum_row = residual_ptr + row * residual_strides[0], sum_ptr + row * sum_strides[0]
        residual = load_chunks(residual_row + lead, length, 0.0, BLOCK_SIZE, CHUNKS)
        totals = ()
        for place in tl.static_range(CHUNKS):
            total = (x[place].to(COMPUTE) + residual[place].to(COMPUTE)).to(sum_ptr.dtype.element_ty)
            mask = chunk_columns(place, BLOCK_SIZE) < length
            tl.store(chunk_pointers(sum_row + lead, place, BLOCK_SIZE), total, mask=mask)
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
        mean = tl.sum(lane_sums(sums, x_edges, VECTOR, EDGES), axis=0) / n_columns  # rounded
        sums = tl.zeros([BLOCK_SIZE], COMPUTE)
        for place in tl.static_range(CHUNKS):
            apart = tl.where(chunk_columns(place, BLOCK_SIZE) < length, x[place].to(COMPUTE) - mean, 0.0)
            sums += apart
            squares += apart * apart
        apart = tl.where(is_edge, x_edges - mean, 0.0)
        error, square = two_sums(
            lane_sums(sums, apart, VECTOR, EDGES), lane_sums(squares, apart * apart, VECTOR, EDGES)
        )  # fmt: skip
        error = error / n_columns
        variance, mean = without_error(square / n_columns, error), mean + error
    else:
        for place in tl.static_range(CHUNKS):
            value = x[place].to(COMPUTE)
            squares += value * value
        variance = tl.sum(lane_sums(squares, x_edges * x_edges, VECTOR, EDGES), axis=0) / n_columns
        mean = tl.zeros_like(variance)
    factor = tl.rsqrt(variance + eps)
    y_row = y_ptr + row * y_strides[0]
    for place in tl.static_range(CHUNKS):
        y = (x[place].to(COMPUTE) - mean) * factor if CENTRE else x[place].to(COMPUTE) * factor
        if HAS_WEIGHT:
            y *= _parameter_chunk(
                weight_ptr, weight_stride, copy_stride, lead, length, place, COPIES, COMPUTE, BLOCK_SIZE
            )
        if HAS_BIAS:
            y += _parameter_chunk(bias_ptr, bias_stride, copy_stride, lead, length, place, COPIES, COMPUTE, BLOCK_SIZE)
        if RELU:
            y = tl.where(y <= 0, 0.0, y)  # keeps NaN, as PyTorch does
        y_pointers = chunk_pointers(y_row + lead, place, BLOCK_SIZE)
        tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=chunk_columns(place, BLOCK_SIZE) < length)
    if EDGES:
        y = (x_edges - mean) * factor if CENTRE else x_edges * factor
        if HAS_WEIGHT:  # the first copy is whole
            y *= _parameter(weight_ptr, 1 if COPIES else weight_stride, edges, is_edge, COMPUTE)
        if HAS_BIAS:
            y += _parameter(bias_ptr, 1 if COPIES else bias_stride, edges, is_edge, COMPUTE)
        if RELU:
            y = tl.where(y <= 0, 0.0, y)
        tl.store(y_row + edges, y.to(y_ptr.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["n_rows"])
def norm_any_width_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, EDGES: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, PACKED: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Persistent programs of one row at a time. The edges of the next row are loaded before a row is computed."""
    n_columns = sizes[0]
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    lead, length = cut_rows(dx_ptr + first * dx_strides[0], n_columns, VECTOR, EDGES)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    weight = (tl.full([BLOCK_SIZE], 1.0, COMPUTE),) * CHUNKS
    weight_edges = tl.full([BLOCK_SIZE // VECTOR], 1.0, COMPUTE)
    if HAS_WEIGHT:
        weight = load_parameter(weight_ptr + lead * weight_stride, weight_stride, length, BLOCK_SIZE, CHUNKS)
        if EDGES:
            weight_edges = _parameter(weight_ptr, weight_stride, edges, is_edge, COMPUTE)
    weight_gradient = (tl.zeros([BLOCK_SIZE], COMPUTE),) * CHUNKS
    bias_gradient = (tl.zeros([BLOCK_SIZE], COMPUTE),) * CHUNKS
    weight_gradient_edges, bias_gradient_edges = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    x_edges, dy_edges = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    if EDGES:
        exists = is_edge & (first < n_rows)
        next_x = tl.load(x_ptr + first * x_strides[0] + edges, mask=exists, other=0.0)
        next_dy = tl.load(dy_ptr + first * dy_strides[0] + edges, mask=exists, other=0.0)
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
        scaled_edges = dy_edges * weight_edges
        firsts, seconds = tl.zeros([BLOCK_SIZE], COMPUTE), tl.zeros([BLOCK_SIZE], COMPUTE)
        if CENTRE:
            for place in tl.static_range(CHUNKS):
                firsts += x[place].to(COMPUTE)
                seconds += dy[place].to(COMPUTE) * weight[place].to(COMPUTE)
            mean, scaled_mean = two_sums(
                lane_sums(firsts, x_edges, VECTOR, EDGES), lane_sums(seconds, scaled_edges, VECTOR, EDGES)
            )  # fmt: skip
            mean, scaled_mean = mean / n_columns, scaled_mean / n_columns
            firsts, seconds = tl.zeros([BLOCK_SIZE], COMPUTE), tl.zeros([BLOCK_SIZE], COMPUTE)
            thirds = tl.zeros([BLOCK_SIZE], COMPUTE)
            for place in tl.static_range(CHUNKS):
                apart = tl.where(chunk_columns(place, BLOCK_SIZE) < length, x_kept[place].to(COMPUTE) - mean, 0.0)
                firsts += apart
                seconds += apart * apart
                thirds += apart * (dy_kept[place].to(COMPUTE) * weight[place].to(COMPUTE))
            apart = tl.where(is_edge, x_edges - mean, 0.0)
            error, square, projection = three_sums(
                lane_sums(firsts, apart, VECTOR, EDGES),
                lane_sums(seconds, apart * apart, VECTOR, EDGES),
                lane_sums(thirds, apart * scaled_edges, VECTOR, EDGES),
            )
            error = error / n_columns
            variance, projection = (
                without_error(square / n_columns, error),
                projection / n_columns - error * scaled_mean,
            )
            mean += error
            x_kept, dy_kept = packed_again(x_kept, PACKED), packed_again(dy_kept, PACKED)
        else:
            for place in tl.static_range(CHUNKS):
                value, scaled = x[place].to(COMPUTE), _masked_dy(x, dy, weight, place, RELU, COMPUTE)
                firsts += value * value
                seconds += scaled * weight[place].to(COMPUTE) * value
            square, projection = two_sums(
                lane_sums(firsts, x_edges * x_edges, VECTOR, EDGES),
                lane_sums(seconds, scaled_edges * x_edges, VECTOR, EDGES),
            )
            variance, projection = square / n_columns, projection / n_columns
            mean, scaled_mean = tl.zeros_like(variance), tl.zeros_like(variance)
        factor = tl.rsqrt(variance + eps)
        dx_row = dx_ptr + row * dx_strides[0]
        for place in tl.static_range(CHUNKS):
            given = _masked_dy(x_kept, dy_kept, weight, place, RELU, COMPUTE)
            normed = (x_kept[place].to(COMPUTE) - mean) * factor
            dx = factor * (given * weight[place].to(COMPUTE) - scaled_mean - normed * (factor * projection))
            mask = chunk_columns(place, BLOCK_SIZE) < length
            tl.store(chunk_pointers(dx_row + lead, place, BLOCK_SIZE), dx.to(dx_ptr.dtype.element_ty), mask=mask)
            # After one turn for each chunk, every sum is in its place again.
            if WEIGHT_GRADIENT:
                weight_gradient = add_to_first_and_rotate(weight_gradient, given * normed)
            if BIAS_GRADIENT:
                bias_gradient = add_to_first_and_rotate(bias_gradient, given)
        if EDGES:
            normed = (x_edges - mean) * factor
            dx = factor * (scaled_edges - scaled_mean - normed * (factor * projection))
            tl.store(dx_row + edges, dx.to(dx_ptr.dtype.element_ty), mask=is_edge)
            weight_gradient_edges += dy_edges * normed
            bias_gradient_edges += dy_edges
    if WEIGHT_GRADIENT:
        partials = weight_partials_ptr + first * n_columns
        _store_partials(partials, weight_gradient, weight_gradient_edges, lead, length, edges, is_edge, EDGES)
    if BIAS_GRADIENT:
        partials = bias_partials_ptr + first * n_columns
        _store_partials(partials, bias_gradient, bias_gradient_edges, lead, length, edges, is_edge, EDGES)


@triton.jit
def _masked_dy(x, dy, weight, place: tl.constexpr, RELU: tl.constexpr, COMPUTE: tl.constexpr):
    """Return a chunk of dy; with RELU zeros where the norm's result is not positive."""
    given = dy[place].to(COMPUTE)
    if RELU:
        given = tl.where(x[place].to(COMPUTE) * weight[place].to(COMPUTE) <= 0, 0.0, given)
    return given  # [BLOCK_SIZE]


@triton.jit
def _store_partials(partials, sums, sums_of_edges, lead, length, edges, is_edge, EDGES: tl.constexpr):
    """Store a program's sums over its rows."""
    for place in tl.static_range(len(sums)):
        columns = chunk_columns(place, sums[place].shape[0])
        tl.store(partials + lead + columns, sums[place], mask=columns < length)
    if EDGES:
        tl.store(partials + edges, sums_of_edges, mask=is_edge)


@triton.jit
def _parameter(pointer, stride, columns, mask, COMPUTE: tl.constexpr):
    """Return a parameter at some columns."""
    return tl.load(pointer + columns * stride, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)
