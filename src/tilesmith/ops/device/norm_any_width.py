"""Norms of rows that start at any address: one form each way, for RMSNorm and LayerNorm alike.

Both kernels cut a row at its first and last aligned address (`aligned_rows.py`), so that all but the edges of a row
moves in 16-byte vectors. They hold one row in registers.

The backward is persistent. Program p takes the rows p, p + programs, …, and the number of programs is a multiple of
VECTOR: all rows of a program are then aligned alike, so the weight and the partial sums keep their place in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from tilesmith.ops.device.aligned_rows import cut_rows, edges_of, tile_pointers
from tilesmith.ops.device.norm_backward import BackwardConfig, GradientProblem, pointers_to
from tilesmith.ops.device.norm_forward import ForwardConfig, ForwardProblem
from tilesmith.ops.device.norm_rows import without_error
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.layout import Rows
from tilesmith.ops.runtime.plan import Operand

VECTOR_BYTES = 16  # the widest access of a thread
NARROWEST = 512  # columns: the edges are a small part of wider rows


@triton.jit(do_not_specialize=["n_rows"])
def norm_any_width_forward_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, residual_ptr, sum_ptr,
    x_strides, y_strides, weight_stride, bias_stride, residual_strides, sum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One row per program. With CENTRE the mean is subtracted first: LayerNorm."""
    n_columns = sizes[0]
    row = tl.program_id(0).to(tl.int64)
    lead, length = cut_rows(y_ptr + row * y_strides[0], n_columns, VECTOR, True)
    columns = tl.arange(0, BLOCK_SIZE)
    mask = columns < length
    edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
    x_row = x_ptr + row * x_strides[0]
    x = tl.load(tile_pointers(x_row + lead, columns, 1, True), mask=mask, other=0.0).to(COMPUTE)  # [BLOCK_SIZE]
    x_edges = tl.load(x_row + edges, mask=is_edge, other=0.0).to(COMPUTE)  # [2 · VECTOR]
    if HAS_RESIDUAL:
        residual_row = residual_ptr + row * residual_strides[0]
        residual = tl.load(tile_pointers(residual_row + lead, columns, 1, True), mask=mask, other=0.0).to(COMPUTE)
        residual_edges = tl.load(residual_row + edges, mask=is_edge, other=0.0).to(COMPUTE)
        total = (x + residual).to(sum_ptr.dtype.element_ty)
        total_edges = (x_edges + residual_edges).to(sum_ptr.dtype.element_ty)
        sum_row = sum_ptr + row * sum_strides[0]
        tl.store(tile_pointers(sum_row + lead, columns, 1, True), total, mask=mask)
        tl.store(sum_row + edges, total_edges, mask=is_edge)
        x, x_edges = total.to(COMPUTE), total_edges.to(COMPUTE)
    if CENTRE:
        mean = (tl.sum(x, axis=0) + tl.sum(x_edges, axis=0)) / n_columns  # rounded
        apart, apart_edges = tl.where(mask, x - mean, 0.0), tl.where(is_edge, x_edges - mean, 0.0)
        error, square = _two_means(apart, apart * apart, apart_edges, apart_edges * apart_edges, n_columns)
        x, x_edges = x - (mean + error), x_edges - (mean + error)
        variance = without_error(square, error)
    else:
        variance = (tl.sum(x * x, axis=0) + tl.sum(x_edges * x_edges, axis=0)) / n_columns
    factor = tl.rsqrt(variance + eps)
    y, y_edges = x * factor, x_edges * factor
    if HAS_WEIGHT:
        y *= _parameter(weight_ptr, weight_stride, lead + columns, mask, COMPUTE)
        y_edges *= _parameter(weight_ptr, weight_stride, edges, is_edge, COMPUTE)
    if HAS_BIAS:
        y += _parameter(bias_ptr, bias_stride, lead + columns, mask, COMPUTE)
        y_edges += _parameter(bias_ptr, bias_stride, edges, is_edge, COMPUTE)
    if RELU:
        y, y_edges = tl.where(y <= 0, 0.0, y), tl.where(y_edges <= 0, 0.0, y_edges)  # keeps NaN, as PyTorch does
    y_row = y_ptr + row * y_strides[0]
    tl.store(tile_pointers(y_row + lead, columns, 1, True), y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(y_row + edges, y_edges.to(y_ptr.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["n_rows"])
def norm_any_width_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Persistent programs of one row at a time. The edges of the next row are loaded before a row is computed."""
    n_columns = sizes[0]
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row = first
    lead, length = cut_rows(dx_ptr + row * dx_strides[0], n_columns, VECTOR, True)
    columns = tl.arange(0, BLOCK_SIZE)
    mask = columns < length
    edges, is_edge = edges_of(lead, length, n_columns, VECTOR)
    weight = tl.full([BLOCK_SIZE], 1.0, COMPUTE)
    weight_edges = tl.full([2 * VECTOR], 1.0, COMPUTE)
    if HAS_WEIGHT:
        weight = _parameter(weight_ptr, weight_stride, lead + columns, mask, COMPUTE)
        weight_edges = _parameter(weight_ptr, weight_stride, edges, is_edge, COMPUTE)
    weight_gradient, weight_gradient_edges = tl.zeros_like(weight), tl.zeros_like(weight_edges)
    bias_gradient, bias_gradient_edges = tl.zeros_like(weight), tl.zeros_like(weight_edges)
    next_x = tl.load(x_ptr + row * x_strides[0] + edges, mask=is_edge & (row < n_rows), other=0.0)
    next_dy = tl.load(dy_ptr + row * dy_strides[0] + edges, mask=is_edge & (row < n_rows), other=0.0)
    for number in tl.range(first, n_rows, programs, num_stages=PIPELINE):
        row = number
        x_row, dy_row = x_ptr + row * x_strides[0], dy_ptr + row * dy_strides[0]
        x = tl.load(tile_pointers(x_row + lead, columns, 1, True), mask=mask, other=0.0).to(COMPUTE)  # [BLOCK_SIZE]
        dy = tl.load(tile_pointers(dy_row + lead, columns, 1, True), mask=mask, other=0.0).to(COMPUTE)
        x_edges, dy_edges = next_x.to(COMPUTE), next_dy.to(COMPUTE)  # [2 · VECTOR]
        goes_on = is_edge & (number + programs < n_rows)
        next_x = tl.load(x_row + programs * x_strides[0] + edges, mask=goes_on, other=0.0)
        next_dy = tl.load(dy_row + programs * dy_strides[0] + edges, mask=goes_on, other=0.0)
        if RELU:
            dy = tl.where(x * weight <= 0, 0.0, dy)
            dy_edges = tl.where(x_edges * weight_edges <= 0, 0.0, dy_edges)
        scaled, scaled_edges = dy * weight, dy_edges * weight_edges
        if CENTRE:
            mean, scaled_mean = _two_means(x, scaled, x_edges, scaled_edges, n_columns)
            apart, apart_edges = tl.where(mask, x - mean, 0.0), tl.where(is_edge, x_edges - mean, 0.0)
            error, square = _two_means(apart, apart * apart, apart_edges, apart_edges * apart_edges, n_columns)
            projection = (tl.sum(scaled * apart, axis=0) + tl.sum(scaled_edges * apart_edges, axis=0)) / n_columns
            x, x_edges = tl.where(mask, x - (mean + error), 0.0), tl.where(is_edge, x_edges - (mean + error), 0.0)
            variance, projection = without_error(square, error), projection - error * scaled_mean
        else:
            scaled_mean = 0.0
            variance, projection = _two_means(x * x, scaled * x, x_edges * x_edges, scaled_edges * x_edges, n_columns)
        factor = tl.rsqrt(variance + eps)
        normed, normed_edges = x * factor, x_edges * factor
        dx = factor * (scaled - scaled_mean - normed * (factor * projection))
        dx_edges = factor * (scaled_edges - scaled_mean - normed_edges * (factor * projection))
        dx_row = dx_ptr + row * dx_strides[0]
        tl.store(tile_pointers(dx_row + lead, columns, 1, True), dx.to(dx_ptr.dtype.element_ty), mask=mask)
        tl.store(dx_row + edges, dx_edges.to(dx_ptr.dtype.element_ty), mask=is_edge)
        if WEIGHT_GRADIENT:
            weight_gradient += dy * normed
            weight_gradient_edges += dy_edges * normed_edges
        if BIAS_GRADIENT:
            bias_gradient += dy
            bias_gradient_edges += dy_edges
    if WEIGHT_GRADIENT:
        partials = weight_partials_ptr + first * n_columns
        tl.store(partials + lead + columns, weight_gradient, mask=mask)
        tl.store(partials + edges, weight_gradient_edges, mask=is_edge)
    if BIAS_GRADIENT:
        partials = bias_partials_ptr + first * n_columns
        tl.store(partials + lead + columns, bias_gradient, mask=mask)
        tl.store(partials + edges, bias_gradient_edges, mask=is_edge)


@triton.jit
def _parameter(pointer, stride, columns, mask, COMPUTE: tl.constexpr):
    """Return a parameter at some columns. Its loads are narrow, but come from cache."""
    return tl.load(pointer + columns * stride, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)


@triton.jit
def _add_pairs(first, second, other_first, other_second):
    return first + other_first, second + other_second


@triton.jit
def _two_means(first, second, first_edges, second_edges, n_columns):
    """Return the means of two rows, each with its edges."""
    first_sum, second_sum = tl.reduce((first, second), 0, _add_pairs)
    first_edge, second_edge = tl.reduce((first_edges, second_edges), 0, _add_pairs)
    return (first_sum + first_edge) / n_columns, (second_sum + second_edge) / n_columns


def _is_odd(walk: Rows) -> bool:
    """Whether some row starts or ends inside a vector, of rows whose place takes a single stride."""
    strides = [stride for strides in walk.strides for stride in strides]
    whole = walk.columns % 16 == 0 and all(stride % 16 == 0 for stride in strides)
    return not whole and not walk.nested and all(stride == 1 for stride in walk.column_strides)


def _are_alike(walk: Rows, operands: list[Any]) -> bool:
    """Whether the rows of all tensors are aligned alike: then one cut does for all."""
    vector = VECTOR_BYTES // operands[0].element_bytes
    same = all(one.element_bytes == operands[0].element_bytes and one.aligned for one in operands)
    return same and all((strides[0] - walk.strides[0][0]) % vector == 0 for strides in walk.strides)


def _block_size(columns: int, element_bytes: int) -> int:
    """Return the power of two that covers a row's middle."""
    vector = VECTOR_BYTES // element_bytes
    return bucket(columns // vector * vector)


@dataclass(frozen=True)
class AnyWidthForward:
    """One row per program, in registers."""

    centre: bool

    def default(self, problem: ForwardProblem) -> ForwardConfig | None:
        if not self._can(problem) or problem.walk.columns < NARROWEST:
            return None
        # rms_norm on an H200, bf16: 8191×4097 38.1 µs with 4 warps, 41.1 with 2; 16384×5121 107.3 µs with 4, 119.1 with
        # 8; 16384×1001 19.9 µs with 1, 23.7 with 4; 4096×12345 68.5 µs with 8.
        block_size = _block_size(problem.walk.columns, problem.dtype.itemsize)
        warps = 8 if block_size > 8192 else min(max(block_size // 1024, 1), 4)
        return ForwardConfig(num_warps=warps, BLOCK_SIZE=block_size, form="any width")

    def takes(self, problem: ForwardProblem) -> bool:
        covers = _block_size(problem.walk.columns, problem.dtype.itemsize) <= problem.config.BLOCK_SIZE
        return problem.config.ROWS == 1 and covers and self._can(problem)

    def suits(self, problem: ForwardProblem) -> bool:
        return problem.config.form == "any width"

    def _can(self, problem: ForwardProblem) -> bool:
        tensors = [problem.arguments.get(f"{name}_ptr") for name in ("y", "x", "residual", "sum")]
        operands = [one for one in tensors if isinstance(one, Operand)]
        in_registers = _block_size(problem.walk.columns, problem.dtype.itemsize) <= 16384
        return _is_odd(problem.walk) and in_registers and _are_alike(problem.walk, operands)

    def plan(self, problem: ForwardProblem) -> None:
        absent = dict.fromkeys(("bias_ptr", "residual_ptr", "sum_ptr", "residual_strides", "sum_strides"))
        flags = {"bias_stride": 0, "HAS_BIAS": False, "HAS_RESIDUAL": False, "RELU": False, "CENTRE": self.centre}
        arguments = {**absent, **flags, **problem.arguments, "VECTOR": VECTOR_BYTES // problem.dtype.itemsize}
        kernel = norm_any_width_forward_kernel
        known = {name: value for name, value in arguments.items() if name in kernel.arg_names}
        problem.launch(kernel, **known)


@dataclass(frozen=True)
class AnyWidthBackward:
    """Persistent programs of one row at a time, in registers."""

    centre: bool

    def default(self, problem: GradientProblem) -> BackwardConfig | None:
        if not self._can(problem) or problem.walk.columns < NARROWEST:
            return None
        # layer_norm on an H200: 8191×4097 bf16 63.9 µs with 4 warps and 2 programs, 84.9 with 8 warps; 16384×5121 201.8
        # µs with 8 warps and 2 programs, 213.4 with 1; 16384×1001 38.2 µs with 2 warps and 4 programs, 51.4 with 2.
        block_size = _block_size(problem.walk.columns, problem.x.element_bytes)
        row_bytes = block_size * problem.x.element_bytes
        warps, programs = (2, 4) if row_bytes <= 2048 else (4, 2) if row_bytes <= 8192 else (8, 2)
        if row_bytes > 16384:
            warps, programs = 16, 1
        elif row_bytes > 4096 and not self.centre:
            warps = 8  # rms_norm 8191×4097 61.3 µs, 63.1 with 4, which spill with Triton 3.9
        return BackwardConfig(
            num_warps=warps, BLOCK_SIZE=block_size, PIPELINE=3, programs_per_multiprocessor=programs, form="any width"
        )  # fmt: skip

    def takes(self, problem: GradientProblem) -> bool:
        covers = _block_size(problem.walk.columns, problem.x.element_bytes) <= problem.config.BLOCK_SIZE
        return problem.config.ROWS == 1 and covers and self._can(problem)

    def suits(self, problem: GradientProblem) -> bool:
        return problem.config.form == "any width"

    def _can(self, problem: GradientProblem) -> bool:
        operands = [problem.arguments[f"{name}_ptr"] for name in ("dx", "x", "dy")]
        in_registers = _block_size(problem.walk.columns, problem.x.element_bytes) <= 8192
        return (
            _is_odd(problem.walk)
            and in_registers
            and not problem.reads_dsum
            and "dsum" not in problem.sums
            and problem.x.element_bytes <= 4
            and _are_alike(problem.walk, operands)
        )

    def plan(self, problem: GradientProblem) -> dict[str, Operand]:
        vector = VECTOR_BYTES // problem.x.element_bytes
        most = max(problem.most_programs // vector, 1) * vector
        programs = min(triton.cdiv(problem.walk.rows, vector) * vector, most)
        partials = problem.plan_partial_sums(programs)
        problem.launch(
            norm_any_width_backward_kernel, programs, VECTOR=vector, CENTRE=self.centre,
            RELU=problem.arguments.get("RELU", False), **pointers_to(partials),
        )  # fmt: skip
        return partials
