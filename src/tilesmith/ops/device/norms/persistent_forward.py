"""The forward of norms of narrow rows from any address on: persistent programs with their parameters in registers.

A narrow row of odd width keeps a program busy for less time than its start takes. So a program takes many rows, and
loads the next ones while it computes. All its rows are aligned alike, so it reads the parameters once.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tilesmith.ops.device.aligned_rows import cut_rows
from tilesmith.ops.device.norms.any_width import ABSENT, NARROWEST_ODD, can_hold_row, rows_alike
from tilesmith.ops.device.norms.any_width_kernels import parameter_at
from tilesmith.ops.device.norms.forward import ForwardConfig, ForwardProblem
from tilesmith.ops.device.norms.rows import plus_one, store_statistics, without_error
from tilesmith.ops.device.row_chunks import (
    can_pack,
    chunk_columns,
    chunk_pointers,
    chunk_size,
    chunks_of,
    edge_lanes,
    has_edge_lanes,
    lane_sums,
    load_chunks,
    load_parameter,
    middle_of,
    two_sums,
)


@triton.jit(do_not_specialize=["n_rows"])
def norm_persistent_forward_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, residual_ptr, sum_ptr, statistics_ptr,
    x_strides, y_strides, weight_stride, bias_stride, residual_strides, sum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, EDGES: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Program p takes the rows p, p + programs, …. The edges of the next row are loaded before a row is computed."""
    n_columns = sizes[0]
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    lead, length = cut_rows(y_ptr + first * y_strides[0], n_columns, VECTOR, EDGES)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    weight = (tl.full([BLOCK_SIZE], 1.0, COMPUTE),) * CHUNKS
    bias = (tl.zeros([BLOCK_SIZE], COMPUTE),) * CHUNKS
    weight_edges = tl.full([BLOCK_SIZE // VECTOR], 1.0, COMPUTE)
    bias_edges, x_edges = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    next_x, next_residual = x_edges, x_edges
    if HAS_WEIGHT:
        weight = load_parameter(weight_ptr + lead * weight_stride, weight_stride, length, BLOCK_SIZE, CHUNKS)
    if HAS_BIAS:
        bias = load_parameter(bias_ptr + lead * bias_stride, bias_stride, length, BLOCK_SIZE, CHUNKS)
    if EDGES:
        if HAS_WEIGHT:
            weight_edges = plus_one(parameter_at(weight_ptr, weight_stride, edges, is_edge, COMPUTE), HAS_WEIGHT)
        if HAS_BIAS:
            bias_edges = parameter_at(bias_ptr, bias_stride, edges, is_edge, COMPUTE)
        goes_on = is_edge & (first < n_rows)
        next_x = tl.load(x_ptr + first * x_strides[0] + edges, mask=goes_on, other=0.0).to(COMPUTE)
        if HAS_RESIDUAL:
            next_residual = tl.load(residual_ptr + first * residual_strides[0] + edges, mask=goes_on, other=0.0).to(
                COMPUTE
            )
    for row in tl.range(first, n_rows, programs, num_stages=PIPELINE):
        x_row = x_ptr + row * x_strides[0]
        x = load_chunks(x_row + lead, length, 0.0, BLOCK_SIZE, CHUNKS)
        if EDGES:
            x_edges = next_x
            goes_on = is_edge & (row + programs < n_rows)
            next_x = tl.load(x_row + programs * x_strides[0] + edges, mask=goes_on, other=0.0).to(COMPUTE)
        if HAS_RESIDUAL:
            residual_row, sum_row = residual_ptr + row * residual_strides[0], sum_ptr + row * sum_strides[0]
            residual = load_chunks(residual_row + lead, length, 0.0, BLOCK_SIZE, CHUNKS)
            x = _store_sums(sum_row + lead, x, residual, length, COMPUTE)
            if EDGES:
                total = (x_edges + next_residual).to(sum_ptr.dtype.element_ty)
                tl.store(sum_row + edges, total, mask=is_edge)
                x_edges = total.to(COMPUTE)
                residual_edges = residual_row + programs * residual_strides[0] + edges
                next_residual = tl.load(residual_edges, mask=goes_on, other=0.0).to(COMPUTE)
        sums, squares = tl.zeros([BLOCK_SIZE], COMPUTE), tl.zeros([BLOCK_SIZE], COMPUTE)
        if CENTRE:
            for place in tl.static_range(CHUNKS):
                sums += x[place].to(COMPUTE)
            mean = tl.sum(lane_sums(sums, x_edges, VECTOR, EDGES), axis=0) / n_columns  # rounded
            sums = tl.zeros([BLOCK_SIZE], COMPUTE)
            for place in tl.static_range(CHUNKS):
                apart = x[place].to(COMPUTE) - mean
                if place == CHUNKS - 1:  # the other chunks are full
                    apart = tl.where(chunk_columns(place, BLOCK_SIZE) < length, apart, 0.0)
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
        if statistics_ptr is not None:
            store_statistics(statistics_ptr, row, mean, factor, True)
        y_row = y_ptr + row * y_strides[0]
        _store_normed(y_row + lead, x, (weight, bias), mean, factor, length, HAS_WEIGHT, RELU, CENTRE, COMPUTE)
        if EDGES:
            y = (x_edges - mean) * factor * weight_edges + bias_edges
            if RELU:
                y = tl.where(y <= 0, 0.0, y)
            tl.store(y_row + edges, y.to(y_ptr.dtype.element_ty), mask=is_edge)


@triton.jit
def _store_sums(sum_ptr, x, residual, length, COMPUTE: tl.constexpr):
    """Store x + residual, and return these sums as they are in memory."""
    CHUNK: tl.constexpr = x[0].shape[0]
    totals = ()
    for place in tl.static_range(len(x)):
        total = (x[place].to(COMPUTE) + residual[place].to(COMPUTE)).to(sum_ptr.dtype.element_ty)
        tl.store(chunk_pointers(sum_ptr, place, CHUNK), total, mask=chunk_columns(place, CHUNK) < length)
        totals = totals + (total,)  # type: ignore[assignment]  # noqa: RUF005  # Triton does not unpack
    return totals


@triton.jit
def _store_normed(
    y_ptr, x, parameters, mean, factor, length,
    HAS_WEIGHT: tl.constexpr, RELU: tl.constexpr, CENTRE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Store y of a row but for its edges."""
    CHUNK: tl.constexpr = x[0].shape[0]
    weight, bias = parameters
    for place in tl.static_range(len(x)):
        y = (x[place].to(COMPUTE) - mean) * factor if CENTRE else x[place].to(COMPUTE) * factor
        y = y * plus_one(weight[place].to(COMPUTE), HAS_WEIGHT) + bias[place].to(COMPUTE)
        if RELU:
            y = tl.where(y <= 0, 0.0, y)  # keeps NaN, as PyTorch does
        mask = chunk_columns(place, CHUNK) < length
        tl.store(chunk_pointers(y_ptr, place, CHUNK), y.to(y_ptr.dtype.element_ty), mask=mask)


WIDEST = 768  # columns
MANY_ROWS = 32768


@dataclass(frozen=True)
class PersistentForward:
    """One row at a time, in the registers of a persistent program."""

    centre: bool

    def default(self, problem: ForwardProblem) -> ForwardConfig | None:
        """Return one warp for a row. On an H200 in bf16, one row a program and persistent: rms_norm 102514×319 66.0 and
        38.7 µs; layer_norm 67.4 and 48.1, 60000×645 50.4 and 46.6. Wider rows gain nothing: rms_norm 40000×1027 45.1
        and 47.8.
        """
        element_bytes, rows = problem.dtype.itemsize, problem.walk.rows
        columns = middle_of(problem.walk.columns, element_bytes)
        if element_bytes != 2 or not problem.has_edges or not can_hold_row(problem):
            return None
        if not NARROWEST_ODD <= problem.walk.columns <= WIDEST or rows <= MANY_ROWS:
            return None
        few, many = (20, 26) if self.centre else (24, 30)
        programs = few if columns > 512 else many
        registers = 65536 // (32 * programs) // 8 * 8  # so that all programs run at once
        return ForwardConfig(
            num_warps=1, BLOCK_SIZE=chunk_size(1, element_bytes), PIPELINE=3,
            programs_per_multiprocessor=programs, form="persistent",
            registers=registers if can_pack(problem.plan, element_bytes) else 0,
        )  # fmt: skip

    def takes(self, problem: ForwardProblem) -> bool:
        element_bytes = problem.dtype.itemsize
        holds_row = problem.config.ROWS == 1 and has_edge_lanes(problem.config.BLOCK_SIZE, element_bytes)
        return holds_row and can_hold_row(problem)

    def suits(self, problem: ForwardProblem) -> bool:
        return problem.config.form == "persistent"

    def plan(self, problem: ForwardProblem) -> None:
        walk, config, kernel = problem.walk, problem.config, norm_persistent_forward_kernel
        alike = rows_alike(walk, problem.vector)
        most_programs = problem.plan.multiprocessors * config.programs_per_multiprocessor
        programs = min(triton.cdiv(walk.rows, alike), max(most_programs // alike, 1)) * alike
        columns = middle_of(walk.columns, problem.dtype.itemsize)
        arguments = {
            **ABSENT, **problem.arguments, "CENTRE": self.centre, "EDGES": problem.has_edges,
            "VECTOR": problem.vector, "CHUNKS": max(chunks_of(columns, config.BLOCK_SIZE), 1),
        }  # fmt: skip
        taken = {name: value for name, value in arguments.items() if name in kernel.arg_names}
        problem.plan.launch(kernel, (programs,), config, **taken)
