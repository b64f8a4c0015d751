"""The gradient: with r = 1/√(mean(x²) + eps) and g = dy · w,

dx = r · g − x · r³ · mean(g · x),    dw = Σ over rows of dy · x · r.

Where x is a sum that is an output too, that output's gradient is added to dx. Where y was cut off at zero, dy counts
only where y is positive, which is where x · w is: r never decides a sign.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norm_backward import BackwardConfig, Forms, backward_config, plan_sweeps, sum_dtype
from tilesmith.ops.device.norm_rows import added_in_turn, both_means, folded, load_tile, load_weight, store_tile
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, dsum_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Whole rows, ROWS at a time; every program takes each n-th group of rows."""
    n_columns = sizes[0]
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "")
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    first = tl.program_id(0).to(tl.int64)
    for group in tl.range(first, tl.cdiv(n_rows, ROWS), tl.num_programs(0), num_stages=PIPELINE):
        rows = group * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, "")
        dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, "")
        if RELU:
            dy = tl.where(x * weight <= 0, 0.0, dy)
        scaled = dy * weight
        mean_square, projection = both_means(x * x, scaled * x, n_columns)
        inverse_rms = tl.rsqrt(mean_square + eps)
        dx = inverse_rms * (scaled - x * (inverse_rms * inverse_rms * projection))
        if SUM_GRADIENT:
            dx += load_tile(dsum_ptr, rows, columns, mask, sizes, dsum_strides, NESTED, COMPUTE, "")
        store_tile(dx_ptr, dx, rows, columns, mask, sizes, dx_strides, NESTED)
        if WEIGHT_GRADIENT:
            weight_gradient += dy * (x * inverse_rms)
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + first * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)


@triton.jit
def _row_statistics(
    dy_ptr, x_ptr, weight_ptr, dy_strides, x_strides, weight_stride, rows, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, RELU: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """r, and r³ · mean(g · x), of rows that are read block by block; as columns."""
    n_columns = sizes[0]
    squares = tl.zeros([rows.shape[0], BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    products = tl.zeros([rows.shape[0], BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, EVICTION)
        dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, EVICTION)
        weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        if RELU:
            dy = tl.where(x * weight <= 0, 0.0, dy)
        squares += folded(x * x, NEIGHBOURS)
        products += folded(dy * weight * x, NEIGHBOURS)
    mean_square, projection = both_means(squares, products, n_columns)
    inverse_rms = tl.rsqrt(mean_square + eps)
    return inverse_rms, inverse_rms * inverse_rms * inverse_rms * projection


@triton.jit
def _tile_gradient(
    dy_ptr, x_ptr, dx_ptr, dsum_ptr, dy_strides, x_strides, dx_strides, dsum_strides,
    weight, inverse_rms, correction, rows, columns, mask, sizes,
    SUM_GRADIENT: tl.constexpr, RELU: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    EVICTION: tl.constexpr,
):  # fmt: skip
    """Stores dx of a tile whose rows' statistics are known; returns what each of its elements adds to dw."""
    x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, EVICTION)
    dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, EVICTION)
    if RELU:
        dy = tl.where(x * weight <= 0, 0.0, dy)
    dx = inverse_rms * (dy * weight) - x * correction
    if SUM_GRADIENT:
        dx += load_tile(dsum_ptr, rows, columns, mask, sizes, dsum_strides, NESTED, COMPUTE, "")
    store_tile(dx_ptr, dx, rows, columns, mask, sizes, dx_strides, NESTED)
    return dy * (x * inverse_rms)


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_backward_cached_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, dsum_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FIRST_BLOCK_SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """One row at a time, in blocks: read for its statistics, and again from cache for dx."""
    n_columns = sizes[0]
    weight_gradients = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    first = tl.program_id(0)
    for row in tl.range(first, n_rows, tl.num_programs(0), num_stages=1):
        rows = row + tl.arange(0, 1)
        inverse_rms, correction = _row_statistics(
            dy_ptr, x_ptr, weight_ptr, dy_strides, x_strides, weight_stride, rows, n_rows, sizes, eps,
            HAS_WEIGHT, RELU, NESTED, COMPUTE, FIRST_BLOCK_SIZE, NEIGHBOURS, "evict_last",
        )  # fmt: skip
        for block in tl.static_range(BLOCKS):
            columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
            in_row = columns < n_columns if block == BLOCKS - 1 else tl.full([BLOCK_SIZE], True, tl.int1)
            weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
            added = _tile_gradient(
                dy_ptr, x_ptr, dx_ptr, dsum_ptr, dy_strides, x_strides, dx_strides, dsum_strides,
                weight, inverse_rms, correction, rows, columns, in_row[None, :], sizes,
                SUM_GRADIENT, RELU, NESTED, COMPUTE, "evict_first",
            )  # fmt: skip
            if WEIGHT_GRADIENT:
                weight_gradients = added_in_turn(weight_gradients, added)
    if WEIGHT_GRADIENT:
        for block in tl.static_range(BLOCKS):
            columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
            tl.store(weight_partials_ptr + first * n_columns + columns, weight_gradients[block], columns < n_columns)


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_row_statistics_kernel(
    dy_ptr, x_ptr, statistics_ptr, weight_ptr, dy_strides, x_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, RELU: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First of two sweeps: r, and r³ · mean(g · x), of each row."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inverse_rms, correction = _row_statistics(
        dy_ptr, x_ptr, weight_ptr, dy_strides, x_strides, weight_stride, rows, n_rows, sizes, eps,
        HAS_WEIGHT, RELU, NESTED, COMPUTE, BLOCK_SIZE, 1, "",
    )  # fmt: skip
    pointers = statistics_ptr + 2 * rows[:, None]
    mask = (rows < n_rows)[:, None]
    tl.store(pointers, inverse_rms, mask=mask)
    tl.store(pointers + 1, correction, mask=mask)


@triton.jit(do_not_specialize=["n_rows", "rows_per_share"])
def rms_norm_backward_tiles_kernel(
    dy_ptr, x_ptr, dx_ptr, statistics_ptr, weight_ptr, weight_partials_ptr, dsum_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, rows_per_share, sizes,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Second of two sweeps: dx in tiles, and what a share of the rows adds to dw for a block of columns."""
    n_columns = sizes[0]
    blocks_per_row = tl.cdiv(n_columns, BLOCK_SIZE)
    columns = tl.program_id(0) % blocks_per_row * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    share = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "")
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, rows_per_share, ROWS):
        rows = share * rows_per_share + start + tl.arange(0, ROWS)
        in_rows = (rows < n_rows)[:, None]
        statistics = statistics_ptr + 2 * rows[:, None]
        inverse_rms = tl.load(statistics, mask=in_rows, other=0.0)
        correction = tl.load(statistics + 1, mask=in_rows, other=0.0)
        added = _tile_gradient(
            dy_ptr, x_ptr, dx_ptr, dsum_ptr, dy_strides, x_strides, dx_strides, dsum_strides,
            weight, inverse_rms, correction, rows, columns, in_rows & in_row[None, :], sizes,
            SUM_GRADIENT, RELU, NESTED, COMPUTE, "",
        )  # fmt: skip
        if WEIGHT_GRADIENT:
            weight_gradient += added
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + share * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)


FORMS = Forms(
    one_sweep=rms_norm_backward_kernel,
    in_cache=rms_norm_backward_cached_kernel,
    statistics=rms_norm_row_statistics_kernel,
    tiles=rms_norm_backward_tiles_kernel,
    statistics_per_row=2,
    apart=BackwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=256, programs_per_multiprocessor=8),
    # With three tiles on their way, on an H200 in bf16 from memory: 16384×512 16.8 µs, 8192×1024 16.9, 16384×2048 53,
    # 16384×4096 100 (4.0 TB/s), 16384×8192 194 (4.15 TB/s). The best without a pipeline takes 121 and 260 µs for the
    # last two.
    sweeps={
        256: (16, 4, 4, 3),
        512: (4, 2, 4, 3),
        1024: (4, 4, 2, 3),
        2048: (2, 8, 2, 3),
        4096: (2, 8, 1, 3),
        8192: (1, 8, 1, 3),
    },
    # x and dy of 32768 columns in bf16. With w they take 192 of an H200's 256 KiB of first-level cache, and the sums
    # half of its registers.
    most_cached_bytes=131072,
)


def plan_norm_gradient(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, eps: float, weight_gradient: bool, *,
    dsum: Operand | None = None, relu: bool = False,
) -> tuple[Operand, Operand]:  # fmt: skip
    """Put on the plan dx, and dw if wanted, of y = rms_norm(x), cut off at zero if so asked; dsum is added to dx."""
    dx = plan.empty_like(x)
    others = {} if dsum is None else {"dsum": dsum}
    walk = as_rows(x.shape, x.strides, dy.strides, dx.strides, *(operand.strides for operand in others.values()))
    compute = compute_dtype(x.dtype)
    arguments = {
        "dy_ptr": dy, "x_ptr": x, "dx_ptr": dx, "weight_ptr": weight, "dsum_ptr": dsum, "eps": float(eps),
        "weight_stride": weight.strides[0] if weight else 0, "dsum_strides": None,
        "HAS_WEIGHT": weight is not None, "SUM_GRADIENT": dsum is not None, "RELU": relu, "COMPUTE": compute,
        **walk.arguments("x", "dy", "dx", *others),
    }  # fmt: skip
    bytes_read = x.element_bytes + dy.element_bytes + (dsum.element_bytes if dsum else 0)
    default = backward_config(walk, bytes_read, FORMS, plan.multiprocessors, plan.architecture.shared_bytes)
    config = plan.choose(default, walk.columns_bucket, x.dtype)
    sums = ["weight"] if weight is not None and weight_gradient else []
    partials = plan_sweeps(plan, FORMS, config, walk, arguments, sums, sum_dtype(x))
    if weight is None or not weight_gradient:
        return dx, plan.empty((0,), x.dtype)
    dweight = plan.empty(weight.shape, weight.dtype)
    plan_sum_of_partials(plan, partials["weight"], dweight, compute)
    return dx, dweight


@kernels("rms_norm_backward")
def backward(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_gradient: bool) -> tuple[Tensor, Tensor]:
    """dx and dw; dw is empty where it is not wanted."""
    return torch.empty_like(x), parameter_like(x, weight, weight_gradient)


def parameter_like(x: Tensor, parameter: Tensor | None, wanted: bool) -> Tensor:
    """A place for a parameter's gradient: empty where there is no such parameter or its gradient is not wanted."""
    if parameter is None or not wanted:
        return torch.empty(0, dtype=x.dtype, device=x.device)
    return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, eps: float, weight_gradient: bool
) -> tuple[Operand, Operand]:
    return plan_norm_gradient(plan, dy, x, weight, eps, weight_gradient)
