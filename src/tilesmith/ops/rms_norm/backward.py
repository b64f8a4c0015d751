"""The gradient of y = x · r · w with r = 1/√(mean(x²) + eps): with g = dy · w,

dx = r · g − x · r³ · mean(g · x),    dw = Σ over rows of dy · x · r.

w is the weight, or 1 + weight (HAS_WEIGHT is 2), or 1. In add_rms_norm x is an output too; its gradient, dsum, is added
to dx. If a ReLU follows, dy is taken as zero where x · w ≤ 0.

FORMS lists the forms. The first that has a default for these sizes computes (`device/norms/backward.py`). A new form
stands before the forms that are slower.

In all kernels `sizes` are the columns and the sizes of two inner dimensions of rows; NESTED: rows have more than one
stride (`runtime/layout.py`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norms.any_width import AnyWidthBackward
from tilesmith.ops.device.norms.backward import (
    BackwardConfig,
    NormGradient,
    OneSweep,
    Sweep,
    TwoSweeps,
    plan_gradient,
)
from tilesmith.ops.device.norms.rows import (
    GradientTensors,
    RowGroup,
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
from tilesmith.ops.device.norms.team_backward import TeamBackward
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, dsum_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Compute whole rows, ROWS at a time: program p computes the groups p, p + programs, …"""
    n_columns = sizes[0]
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    weight = load_weight(Vector(weight_ptr, weight_stride), columns, in_row, HAS_WEIGHT, COMPUTE, "")  # [1, BLOCK_SIZE]
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    first = tl.program_id(0).to(tl.int64)
    for group in tl.range(first, tl.cdiv(n_rows, ROWS), tl.num_programs(0), num_stages=PIPELINE):
        rows = group * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        tile = RowTile(rows, columns, mask, sizes)
        x = load_tile(RowTensor(x_ptr, x_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        dy = load_tile(RowTensor(dy_ptr, dy_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        if RELU:
            dy = tl.where(x * weight <= 0, 0.0, dy)
        scaled = dy * weight
        mean_square, projection = two_row_means(x * x, scaled * x, n_columns)  # [ROWS, 1] each
        inverse_rms = tl.rsqrt(mean_square + eps)
        dx = inverse_rms * (scaled - x * (inverse_rms * inverse_rms * projection))
        if SUM_GRADIENT:
            dx += load_tile(RowTensor(dsum_ptr, dsum_strides), tile, NESTED, COMPUTE, "")
        store_tile(RowTensor(dx_ptr, dx_strides), dx, tile, NESTED)
        if WEIGHT_GRADIENT:
            weight_gradient += dy * (x * inverse_rms)
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + first * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)


@triton.jit
def _row_statistics(
    tensors, group, eps,
    HAS_WEIGHT: tl.constexpr, RELU: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Return r and r³ · mean(g · x) of rows that are read block by block."""
    rows, n_columns = group.rows, group.sizes[0]
    squares = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    products = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = (rows < group.n_rows)[:, None] & in_row[None, :]
        tile = RowTile(rows, columns, mask, group.sizes)
        x = load_tile(tensors.x, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        dy = load_tile(tensors.dy, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
        weight = load_weight(tensors.weight, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")  # [1, BLOCK_SIZE]
        if RELU:
            dy = tl.where(x * weight <= 0, 0.0, dy)
        squares += x * x
        products += dy * weight * x
    mean_square, projection = two_row_means(squares, products, n_columns)  # [ROWS, 1] each
    inverse_rms = tl.rsqrt(mean_square + eps)
    return inverse_rms, inverse_rms * inverse_rms * inverse_rms * projection


@triton.jit
def _tile_gradient(
    tensors, weight, inverse_rms, correction, tile,
    SUM_GRADIENT: tl.constexpr, RELU: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Store dx of a tile, given its rows' statistics. Return the terms of dw: dy · x · r."""
    x = load_tile(tensors.x, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
    dy = load_tile(tensors.dy, tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
    if RELU:
        dy = tl.where(x * weight <= 0, 0.0, dy)
    dx = inverse_rms * (dy * weight) - x * correction
    if SUM_GRADIENT:
        dx += load_tile(tensors.dsum, tile, NESTED, COMPUTE, "")
    store_tile(tensors.dx, dx, tile, NESTED)
    return dy * (x * inverse_rms)  # [ROWS, BLOCK_SIZE]


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_row_statistics_kernel(
    dy_ptr, x_ptr, row_results_ptr, weight_ptr, dy_strides, x_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, RELU: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First of two sweeps: r and r³ · mean(g · x) of each row."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    absent = RowTensor(None, None)
    tensors = GradientTensors(
        RowTensor(dy_ptr, dy_strides), RowTensor(x_ptr, x_strides), absent, absent, Vector(weight_ptr, weight_stride)
    )
    group = RowGroup(rows, n_rows, sizes)
    inverse_rms, correction = _row_statistics(tensors, group, eps, HAS_WEIGHT, RELU, NESTED, COMPUTE, BLOCK_SIZE)
    store_statistics(row_results_ptr, rows[:, None], inverse_rms, correction, (rows < n_rows)[:, None])


@triton.jit(do_not_specialize=["n_rows", "rows_per_part"])
def rms_norm_backward_tiles_kernel(
    dy_ptr, x_ptr, dx_ptr, row_results_ptr, weight_ptr, weight_partials_ptr, dsum_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, rows_per_part, sizes,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Second of two sweeps: dx in tiles, and dw of a block of columns, summed over `rows_per_part` rows."""
    n_columns = sizes[0]
    tensors = GradientTensors(
        RowTensor(dy_ptr, dy_strides), RowTensor(x_ptr, x_strides), RowTensor(dx_ptr, dx_strides),
        RowTensor(dsum_ptr, dsum_strides), Vector(weight_ptr, weight_stride),
    )  # fmt: skip
    columns, in_row, weight, part = columns_of_program(tensors.weight, n_columns, HAS_WEIGHT, COMPUTE, BLOCK_SIZE)
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, rows_per_part, ROWS):
        rows = part * rows_per_part + start + tl.arange(0, ROWS)
        in_rows = (rows < n_rows)[:, None]
        inverse_rms, correction = load_statistics(row_results_ptr, rows[:, None], in_rows)  # [ROWS, 1] each
        tile = RowTile(rows, columns, in_rows & in_row[None, :], sizes)
        added = _tile_gradient(tensors, weight, inverse_rms, correction, tile, SUM_GRADIENT, RELU, NESTED, COMPUTE)
        if WEIGHT_GRADIENT:
            weight_gradient += added
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + part * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)


# For x whose neighbouring rows, not columns, are contiguous.
COLUMNS_APART = BackwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=256, programs_per_multiprocessor=8)
FORMS = (  # `centre`: a mean is subtracted, as layer_norm does
    AnyWidthBackward(centre=False),
    OneSweep(
        kernel=rms_norm_backward_kernel,
        # On an H200 in bf16 from memory: 16384×512 16.8 µs, 8192×1024 16.9, 16384×2048 53, 16384×4096 100 (4.0 TB/s),
        # 16384×8192 194 (4.15 TB/s). Without a pipeline, the last two take 121 and 260 µs at best.
        sweeps={  # by the columns, rounded up to a power of two
            256: Sweep(rows=16, warps=4, programs=4, stages=3),
            512: Sweep(rows=4, warps=2, programs=4, stages=3),
            1024: Sweep(rows=4, warps=4, programs=2, stages=3),
            2048: Sweep(rows=2, warps=8, programs=2, stages=3),
            4096: Sweep(rows=2, warps=8, programs=1, stages=3),
            8192: Sweep(rows=1, warps=8, programs=1, stages=3),
        },
        columns_apart=COLUMNS_APART,
    ),
    TeamBackward(centre=False),
    TwoSweeps(
        rms_norm_row_statistics_kernel,
        rms_norm_backward_tiles_kernel,
        columns_apart=COLUMNS_APART,
    ),
)


def plan_norm_gradient(
    plan: Plan, given: NormGradient, weight_gradient: bool, *, relu: bool = False
) -> tuple[Operand, Operand]:
    """Plan dx, and dw if wanted, of rms_norm(x) with or without a ReLU after it. Return both; dw may be empty."""
    weight = given.weight if weight_gradient else None
    dx, partials = plan_gradient(plan, FORMS, given, ["weight"] if weight is not None else [], RELU=relu)
    if weight is None:
        return dx, plan.empty((0,), given.x.dtype)
    dweight = plan.empty(weight.shape, weight.dtype)
    plan_sum_of_partials(plan, partials["weight"], dweight, compute_dtype(given.x.dtype))
    return dx, dweight


@kernels("rms_norm_backward")
def backward(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_gradient: bool) -> tuple[Tensor, Tensor]:
    """Return dx and dw; dw is empty unless wanted."""
    return torch.empty_like(x), parameter_like(x, weight, weight_gradient)


def parameter_like(x: Tensor, parameter: Tensor | None, wanted: bool) -> Tensor:
    """Return memory for a parameter's gradient; an empty tensor without the parameter, or if not wanted."""
    if parameter is None or not wanted:
        return torch.empty(0, dtype=x.dtype, device=x.device)
    return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, eps: float, weight_gradient: bool
) -> tuple[Operand, Operand]:
    return plan_norm_gradient(plan, NormGradient(dy, x, weight, eps=eps), weight_gradient)
