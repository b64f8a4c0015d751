"""The gradient: with r = 1/√(mean(x²) + eps) and g = dy · w,

dx = r · g − x · r³ · mean(g · x),    dw = Σ over rows of dy · x · r.

Two forms. Rows that fit in registers take one sweep: each of a fixed number of programs goes through its share of the
rows, computes dx, and adds up its part of dw, with the next rows already on their way from memory. Wider rows, and rows
whose columns are apart in memory, take two: the first finds r and mean(g · x) of each row, the second goes through the
matrix in tiles.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.elementwise import compute_dtype
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows, tile_offsets
from tilesmith.ops.runtime.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, dx_ptr, partials_ptr, dy_strides, x_strides, weight_stride, dx_strides,
    n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Whole rows, ROWS at a time; every program takes each n-th group of rows."""
    n_columns = sizes[0]
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + columns * weight_stride, mask=in_row, other=0.0).to(COMPUTE)[None, :]
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    first = tl.program_id(0).to(tl.int64)
    for group in tl.range(first, tl.cdiv(n_rows, ROWS), tl.num_programs(0), num_stages=PIPELINE):
        rows = group * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        x_pointers = x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED)
        dy_pointers = dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED)
        x = tl.load(x_pointers, mask=mask, other=0.0).to(COMPUTE)
        dy = tl.load(dy_pointers, mask=mask, other=0.0).to(COMPUTE)
        scaled = dy
        if HAS_WEIGHT:
            scaled *= weight
        inverse_rms = tl.rsqrt(tl.sum(x * x, axis=1) / n_columns + eps)[:, None]
        projection = (tl.sum(scaled * x, axis=1) / n_columns)[:, None]
        dx = inverse_rms * (scaled - x * (inverse_rms * inverse_rms * projection))
        dx_pointers = dx_ptr + tile_offsets(rows, columns, sizes, dx_strides, NESTED)
        tl.store(dx_pointers, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if WEIGHT_GRADIENT:
            weight_gradient += dy * (x * inverse_rms)
    if WEIGHT_GRADIENT:
        partial = partials_ptr + first * n_columns + columns
        tl.store(partial, tl.sum(weight_gradient, axis=0), mask=in_row)


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_row_statistics_kernel(
    dy_ptr, x_ptr, weight_ptr, statistics_ptr, dy_strides, x_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First sweep over wide rows: r, and r³ · mean(g · x), of each row."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    squares = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    products = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        x_pointers = x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED)
        dy_pointers = dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED)
        x = tl.load(x_pointers, mask=mask, other=0.0).to(COMPUTE)
        dy = tl.load(dy_pointers, mask=mask, other=0.0).to(COMPUTE)
        if HAS_WEIGHT:
            weight = tl.load(weight_ptr + columns * weight_stride, mask=in_row, other=0.0)
            dy *= weight.to(COMPUTE)[None, :]
        squares += x * x
        products += dy * x
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=1) / n_columns + eps)
    correction = inverse_rms * inverse_rms * inverse_rms * (tl.sum(products, axis=1) / n_columns)
    tl.store(statistics_ptr + 2 * rows, inverse_rms, mask=rows < n_rows)
    tl.store(statistics_ptr + 2 * rows + 1, correction, mask=rows < n_rows)


@triton.jit(do_not_specialize=["n_rows", "rows_per_share"])
def rms_norm_backward_tiles_kernel(
    dy_ptr, x_ptr, weight_ptr, statistics_ptr, dx_ptr, partials_ptr, dy_strides, x_strides, weight_stride, dx_strides,
    n_rows, rows_per_share, sizes,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Second sweep over wide rows: dx in tiles, and what a share of the rows adds to dw for a block of columns."""
    n_columns = sizes[0]
    blocks_per_row = tl.cdiv(n_columns, BLOCK_SIZE)
    columns = tl.program_id(0) % blocks_per_row * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    share = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + columns * weight_stride, mask=in_row, other=0.0).to(COMPUTE)[None, :]
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, rows_per_share, ROWS):
        rows = share * rows_per_share + start + tl.arange(0, ROWS)
        in_rows = rows < n_rows
        mask = in_rows[:, None] & in_row[None, :]
        x_pointers = x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED)
        dy_pointers = dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED)
        x = tl.load(x_pointers, mask=mask, other=0.0).to(COMPUTE)
        dy = tl.load(dy_pointers, mask=mask, other=0.0).to(COMPUTE)
        inverse_rms = tl.load(statistics_ptr + 2 * rows, mask=in_rows, other=0.0)[:, None]
        correction = tl.load(statistics_ptr + 2 * rows + 1, mask=in_rows, other=0.0)[:, None]
        scaled = dy
        if HAS_WEIGHT:
            scaled *= weight
        dx = inverse_rms * scaled - x * correction
        dx_pointers = dx_ptr + tile_offsets(rows, columns, sizes, dx_strides, NESTED)
        tl.store(dx_pointers, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if WEIGHT_GRADIENT:
            weight_gradient += dy * (x * inverse_rms)
    if WEIGHT_GRADIENT:
        tl.store(partials_ptr + share * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)


@dataclass(frozen=True)
class BackwardConfig(Config):
    """Each program takes ROWS × BLOCK_SIZE elements at a time, with PIPELINE such tiles on their way from memory.

    BLOCK_SIZE covers the row in the form of one sweep.
    """

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    PIPELINE: int = 1
    programs_per_multiprocessor: int = 1


# One sweep, by the block that covers a row: rows at a time, warps, programs per multiprocessor. With three tiles on
# their way, on an H200 in bf16 from memory: 16384×512 16.8 µs, 8192×1024 16.9, 16384×2048 53, 16384×4096 100
# (4.0 TB/s), 16384×8192 194 (4.15 TB/s). The best without a pipeline takes 121 and 260 µs for the last two.
_SWEEPS = {256: (16, 4, 4), 512: (4, 2, 4), 1024: (4, 4, 2), 2048: (2, 8, 2), 4096: (2, 8, 1), 8192: (1, 8, 1)}
WIDEST_IN_REGISTERS = max(_SWEEPS)


def backward_config(walk: Rows, element_bytes: int, multiprocessors: int, shared_bytes: int) -> BackwardConfig:
    if walk.column_strides[0] != 1:  # neighbouring rows are neighbours in memory: read them together
        return BackwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=256, programs_per_multiprocessor=8)
    block_size = bucket(walk.columns)
    if block_size > WIDEST_IN_REGISTERS:
        # 4096×32768 bf16 on an H200: 325 µs (2.48 TB/s), the same within 1 % for all of 24 shapes of tile. The two
        # sweeps read x and dy twice: 5 elements moved where one sweep moves 3, so 2.56 TB/s is the most this form can.
        return BackwardConfig(num_warps=8, ROWS=1, BLOCK_SIZE=2048, programs_per_multiprocessor=4)
    rows, warps, programs = _SWEEPS[max(block_size, min(_SWEEPS))]
    rows = min(rows, bucket(walk.rows))
    takes_turns = bucket(walk.rows) > rows * programs * multiprocessors
    stage_bytes = 2 * programs * rows * block_size * element_bytes  # x and dy of all programs of a multiprocessor
    # In a single turn a pipeline only costs: 4096×128 bf16 takes 4.4 µs without, 4.8 with two stages.
    pipeline = 3 if takes_turns and 3 * stage_bytes <= shared_bytes else 1
    return BackwardConfig(
        num_warps=warps, ROWS=rows, BLOCK_SIZE=block_size, PIPELINE=pipeline, programs_per_multiprocessor=programs
    )


@kernels("rms_norm_backward")
def backward(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_gradient: bool) -> tuple[Tensor, Tensor]:
    """dx and dw; dw is empty where it is not wanted."""
    return torch.empty_like(x), _weight_like(x, weight, weight_gradient)


def _weight_like(x: Tensor, weight: Tensor | None, wanted: bool) -> Tensor:
    if weight is None or not wanted:
        return torch.empty(0, dtype=x.dtype, device=x.device)
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, eps: float, weight_gradient: bool
) -> tuple[Operand, Operand]:
    dx = plan.empty_like(x)
    walk = as_rows(x.shape, x.strides, dy.strides, dx.strides)
    compute = compute_dtype(x.dtype)
    wanted = weight is not None and weight_gradient
    shared = {
        "dy_ptr": dy, "x_ptr": x, "weight_ptr": weight, "weight_stride": weight.strides[0] if weight else 0,
        "HAS_WEIGHT": weight is not None, "COMPUTE": compute,
    }  # fmt: skip
    default = backward_config(walk, x.element_bytes, plan.multiprocessors, plan.architecture.shared_bytes)
    config = plan.choose(default, walk.columns_bucket, x.dtype)
    plan_form = _plan_one_sweep if walk.columns <= config.BLOCK_SIZE else _plan_two_sweeps
    partials = plan_form(plan, config, walk, x, dx, float(eps), wanted, shared)
    if partials is None or weight is None:
        return dx, plan.empty((0,), x.dtype)
    dweight = plan.empty(weight.shape, weight.dtype)
    plan_sum_of_partials(plan, partials, dweight, compute)
    return dx, dweight


def _plan_one_sweep(
    plan: Plan, config: BackwardConfig, walk: Rows, x: Operand, dx: Operand, eps: float, wanted: bool,
    shared: dict[str, object],
) -> Operand | None:  # fmt: skip
    programs = min(triton.cdiv(walk.rows, config.ROWS), plan.multiprocessors * config.programs_per_multiprocessor)
    partials = plan.empty((programs, walk.columns), _torch_dtype(x)) if wanted else None
    plan.launch(
        rms_norm_backward_kernel, (programs if walk.columns else 0,), config,
        **shared, dx_ptr=dx, partials_ptr=partials, eps=eps, **walk.arguments("x", "dy", "dx"), WEIGHT_GRADIENT=wanted,
    )  # fmt: skip
    return partials


def _plan_two_sweeps(
    plan: Plan, config: BackwardConfig, walk: Rows, x: Operand, dx: Operand, eps: float, wanted: bool,
    shared: dict[str, object],
) -> Operand | None:  # fmt: skip
    statistics = plan.empty((walk.rows, 2), _torch_dtype(x))
    strides = walk.arguments("x", "dy", "dx")
    plan.launch(
        rms_norm_row_statistics_kernel, (triton.cdiv(walk.rows, config.ROWS) if walk.columns else 0,), config,
        **shared, statistics_ptr=statistics, eps=eps,
        **{name: value for name, value in strides.items() if name != "dx_strides"},
    )  # fmt: skip
    blocks_per_row = triton.cdiv(walk.columns, config.BLOCK_SIZE)
    shares = max(plan.multiprocessors * config.programs_per_multiprocessor // max(blocks_per_row, 1), 1)
    rows_per_share = triton.cdiv(triton.cdiv(walk.rows, shares), config.ROWS) * config.ROWS
    shares = triton.cdiv(walk.rows, rows_per_share) if walk.rows else 0
    partials = plan.empty((shares, walk.columns), _torch_dtype(x)) if wanted else None
    plan.launch(
        rms_norm_backward_tiles_kernel, (shares * blocks_per_row,), config,
        **shared, statistics_ptr=statistics, dx_ptr=dx, partials_ptr=partials, rows_per_share=rows_per_share,
        **strides, WEIGHT_GRADIENT=wanted,
    )  # fmt: skip
    return partials


def _torch_dtype(x: Operand) -> torch.dtype:
    """What sums over x are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
