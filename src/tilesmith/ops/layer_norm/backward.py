"""The gradient: with c = x − mean(x), r = 1/√(mean(c²) + eps) and g = dy · w,

dx = r · (g − mean(g)) − c · r³ · mean(g · c),    dw = Σ over rows of dy · c · r,    db = Σ over rows of dy.

The forms are those of every norm: see `rms_norm/sweeps.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.layer_norm.moments import merged_mean, places_taken, squared, stepped
from tilesmith.ops.rms_norm.backward import parameter_like
from tilesmith.ops.rms_norm.rows import added_in_turn, both_means, folded, load_tile, load_weight, store_tile
from tilesmith.ops.rms_norm.sweeps import BackwardConfig, Forms, backward_config, plan_sweeps, sum_dtype
from tilesmith.ops.runtime.elementwise import compute_dtype
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.partial_sums import partial_sum_config, plan_sum_of_partials, sum_partials_kernel
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Whole rows, ROWS at a time; every program takes each n-th group of rows."""
    n_columns = sizes[0]
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "")
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    bias_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    first = tl.program_id(0).to(tl.int64)
    for group in tl.range(first, tl.cdiv(n_rows, ROWS), tl.num_programs(0), num_stages=PIPELINE):
        rows = group * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, "")
        dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, "")
        scaled = dy * weight
        mean, scaled_mean = both_means(x, scaled, n_columns)
        centred = tl.where(mask, x - mean, 0.0)
        variance, projection = both_means(centred * centred, scaled * centred, n_columns)
        inverse_deviation = tl.rsqrt(variance + eps)
        normed = centred * inverse_deviation
        dx = inverse_deviation * (scaled - scaled_mean - normed * (inverse_deviation * projection))
        store_tile(dx_ptr, dx, rows, columns, mask, sizes, dx_strides, NESTED)
        if WEIGHT_GRADIENT:
            weight_gradient += dy * normed
        if BIAS_GRADIENT:
            bias_gradient += dy
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + first * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)
    if BIAS_GRADIENT:
        tl.store(bias_partials_ptr + first * n_columns + columns, tl.sum(bias_gradient, axis=0), mask=in_row)


@triton.jit
def _row_statistics(
    dy_ptr, x_ptr, weight_ptr, dy_strides, x_strides, weight_stride, rows, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """mean(x), r, mean(g), and r³ · mean(g · c), of rows that are read block by block; as columns."""
    n_columns = sizes[0]
    means = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    scaled_means = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    squares = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    products = tl.zeros([rows.shape[0], BLOCK_SIZE], COMPUTE)
    blocks_read = tl.zeros([1, 1], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, "")
        dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, "")
        scaled = dy * load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        blocks_read += 1
        share = 1 / blocks_read
        step, means = stepped(means, x, mask, share)
        scaled_step, scaled_means = stepped(scaled_means, scaled, mask, share)
        squares += squared(step, step, share)
        products += squared(step, scaled_step, share)
    taken = places_taken(n_columns, BLOCK_SIZE, COMPUTE)
    mean, apart = merged_mean(means, taken, n_columns)
    scaled_mean, scaled_apart = merged_mean(scaled_means, taken, n_columns)
    variance, projection = both_means(
        squares + taken * (apart * apart), products + taken * (apart * scaled_apart), n_columns
    )
    inverse_deviation = tl.rsqrt(variance + eps)
    return mean, inverse_deviation, scaled_mean, inverse_deviation * inverse_deviation * inverse_deviation * projection


@triton.jit
def _tile_gradient(
    dy_ptr, x_ptr, dx_ptr, dy_strides, x_strides, dx_strides,
    weight, mean, inverse_deviation, scaled_mean, correction, rows, columns, mask, sizes,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Stores dx of a tile whose rows' statistics are known; returns what its elements add to dw and to db."""
    x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, EVICTION)
    dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, EVICTION)
    centred = x - mean
    dx = inverse_deviation * (dy * weight - scaled_mean) - centred * correction
    store_tile(dx_ptr, dx, rows, columns, mask, sizes, dx_strides, NESTED)
    return dy * (centred * inverse_deviation), dy


@triton.jit
def _cached_row_statistics(
    dy_ptr, x_ptr, weight_ptr, dy_strides, x_strides, weight_stride, rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """The same of a row that stays in cache. It is read once more for its variance, since running means of every place
    in a block take registers, and sums of neighbours do not."""
    n_columns = sizes[0]
    sums = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    scaled_sums = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        x = load_tile(x_ptr, rows, columns, in_row[None, :], sizes, x_strides, NESTED, COMPUTE, "evict_last")
        dy = load_tile(dy_ptr, rows, columns, in_row[None, :], sizes, dy_strides, NESTED, COMPUTE, "evict_last")
        weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        sums += folded(x, NEIGHBOURS)
        scaled_sums += folded(dy * weight, NEIGHBOURS)
    mean, scaled_mean = both_means(sums, scaled_sums, n_columns)
    squares = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    products = tl.zeros([1, BLOCK_SIZE // NEIGHBOURS], COMPUTE)
    for start in range(0, n_columns, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        x = load_tile(x_ptr, rows, columns, in_row[None, :], sizes, x_strides, NESTED, COMPUTE, "evict_last")
        dy = load_tile(dy_ptr, rows, columns, in_row[None, :], sizes, dy_strides, NESTED, COMPUTE, "evict_last")
        weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
        centred = tl.where(in_row[None, :], x - mean, 0.0)
        squares += folded(centred * centred, NEIGHBOURS)
        products += folded(dy * weight * centred, NEIGHBOURS)
    variance, projection = both_means(squares, products, n_columns)
    inverse_deviation = tl.rsqrt(variance + eps)
    return mean, inverse_deviation, scaled_mean, inverse_deviation * inverse_deviation * inverse_deviation * projection


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_backward_cached_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FIRST_BLOCK_SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """One row at a time, in blocks: read for its statistics, and again from cache for dx."""
    n_columns = sizes[0]
    weight_gradients = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    bias_gradients = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    first = tl.program_id(0)
    for row in tl.range(first, n_rows, tl.num_programs(0), num_stages=1):
        rows = row + tl.arange(0, 1)
        mean, inverse_deviation, scaled_mean, correction = _cached_row_statistics(
            dy_ptr, x_ptr, weight_ptr, dy_strides, x_strides, weight_stride, rows, sizes, eps,
            HAS_WEIGHT, NESTED, COMPUTE, FIRST_BLOCK_SIZE, NEIGHBOURS,
        )  # fmt: skip
        for block in tl.static_range(BLOCKS):
            columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
            in_row = columns < n_columns if block == BLOCKS - 1 else tl.full([BLOCK_SIZE], True, tl.int1)
            weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "evict_last")
            added, dy = _tile_gradient(
                dy_ptr, x_ptr, dx_ptr, dy_strides, x_strides, dx_strides,
                weight, mean, inverse_deviation, scaled_mean, correction, rows, columns, in_row[None, :], sizes,
                NESTED, COMPUTE, "evict_first",
            )  # fmt: skip
            if WEIGHT_GRADIENT:
                weight_gradients = added_in_turn(weight_gradients, added)
            if BIAS_GRADIENT:
                bias_gradients = added_in_turn(bias_gradients, dy)
    for block in tl.static_range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
        if WEIGHT_GRADIENT:
            tl.store(weight_partials_ptr + first * n_columns + columns, weight_gradients[block], columns < n_columns)
        if BIAS_GRADIENT:
            tl.store(bias_partials_ptr + first * n_columns + columns, bias_gradients[block], columns < n_columns)


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_row_statistics_kernel(
    dy_ptr, x_ptr, statistics_ptr, weight_ptr, dy_strides, x_strides, weight_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First of two sweeps: mean(x), r, mean(g), and r³ · mean(g · c), of each row."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mean, inverse_deviation, scaled_mean, correction = _row_statistics(
        dy_ptr, x_ptr, weight_ptr, dy_strides, x_strides, weight_stride, rows, n_rows, sizes, eps,
        HAS_WEIGHT, NESTED, COMPUTE, BLOCK_SIZE,
    )  # fmt: skip
    pointers = statistics_ptr + 4 * rows[:, None]
    mask = (rows < n_rows)[:, None]
    tl.store(pointers, mean, mask=mask)
    tl.store(pointers + 1, inverse_deviation, mask=mask)
    tl.store(pointers + 2, scaled_mean, mask=mask)
    tl.store(pointers + 3, correction, mask=mask)


@triton.jit(do_not_specialize=["n_rows", "rows_per_share"])
def layer_norm_backward_tiles_kernel(
    dy_ptr, x_ptr, dx_ptr, statistics_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, n_rows, rows_per_share, sizes,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Second of two sweeps: dx in tiles, and what a share of the rows adds to dw and db for a block of columns."""
    n_columns = sizes[0]
    blocks_per_row = tl.cdiv(n_columns, BLOCK_SIZE)
    columns = tl.program_id(0) % blocks_per_row * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    share = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "")
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    bias_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, rows_per_share, ROWS):
        rows = share * rows_per_share + start + tl.arange(0, ROWS)
        in_rows = (rows < n_rows)[:, None]
        statistics = statistics_ptr + 4 * rows[:, None]
        mean = tl.load(statistics, mask=in_rows, other=0.0)
        inverse_deviation = tl.load(statistics + 1, mask=in_rows, other=0.0)
        scaled_mean = tl.load(statistics + 2, mask=in_rows, other=0.0)
        correction = tl.load(statistics + 3, mask=in_rows, other=0.0)
        added, dy = _tile_gradient(
            dy_ptr, x_ptr, dx_ptr, dy_strides, x_strides, dx_strides,
            weight, mean, inverse_deviation, scaled_mean, correction, rows, columns, in_rows & in_row[None, :], sizes,
            NESTED, COMPUTE, "",
        )  # fmt: skip
        if WEIGHT_GRADIENT:
            weight_gradient += added
        if BIAS_GRADIENT:
            bias_gradient += dy
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + share * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)
    if BIAS_GRADIENT:
        tl.store(bias_partials_ptr + share * n_columns + columns, tl.sum(bias_gradient, axis=0), mask=in_row)


@triton.jit(do_not_specialize=["n_partials"])
def sum_both_partials_kernel(
    weight_partials_ptr, bias_partials_ptr, dweight_ptr, dbias_ptr, n_partials, n_columns,
    COMPUTE: tl.constexpr, PARTIALS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums for weight and bias in one launch: the second dimension of the grid says which."""
    if tl.program_id(1) == 0:
        sum_partials_kernel(
            weight_partials_ptr, dweight_ptr, n_partials, n_columns, n_columns, 1, COMPUTE, PARTIALS, COLUMNS
        )
    else:
        sum_partials_kernel(
            bias_partials_ptr, dbias_ptr, n_partials, n_columns, n_columns, 1, COMPUTE, PARTIALS, COLUMNS
        )


FORMS = Forms(
    one_sweep=layer_norm_backward_kernel,
    in_cache=layer_norm_backward_cached_kernel,
    statistics=layer_norm_row_statistics_kernel,
    tiles=layer_norm_backward_tiles_kernel,
    statistics_per_row=4,
    apart=BackwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=128, programs_per_multiprocessor=8),
    # On an H200 in bf16: 16384×512 19.5 µs (20.3 with four tiles on their way), 16384×4096 103.6 (3.9 TB/s; 111 with
    # three), 16384×8192 205.7 (3.9 TB/s; 208 with three).
    sweeps={
        256: (16, 4, 4, 3),
        512: (4, 2, 4, 3),
        1024: (4, 4, 2, 3),
        2048: (2, 8, 2, 3),
        4096: (2, 8, 1, 4),
        8192: (1, 8, 1, 4),
    },
    most_cached_bytes=65536,  # half of what rms_norm's can: there are two sums to hold
)


@kernels("layer_norm_backward")
def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    weight_gradient: bool, bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dx, dw and db; those of the parameters are empty where they are not wanted. Of bias only the look counts."""
    return (
        torch.empty_like(x),
        parameter_like(x, weight, weight_gradient),
        parameter_like(x, bias, bias_gradient),
    )


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, bias: Operand | None, eps: float,
    weight_gradient: bool, bias_gradient: bool,
) -> tuple[Operand, ...]:  # fmt: skip
    dx = plan.empty_like(x)
    walk = as_rows(x.shape, x.strides, dy.strides, dx.strides)
    compute = compute_dtype(x.dtype)
    arguments = {
        "dy_ptr": dy, "x_ptr": x, "dx_ptr": dx, "weight_ptr": weight, "eps": float(eps),
        "weight_stride": weight.strides[0] if weight else 0, "HAS_WEIGHT": weight is not None, "COMPUTE": compute,
        **walk.arguments("x", "dy", "dx"),
    }  # fmt: skip
    bytes_read = x.element_bytes + dy.element_bytes
    default = backward_config(walk, bytes_read, FORMS, plan.multiprocessors, plan.architecture.shared_bytes)
    config = plan.choose(default, walk.columns_bucket, x.dtype)
    wanted = {"weight": weight if weight_gradient else None, "bias": bias if bias_gradient else None}
    gradients = {name: plan.empty(one.shape, one.dtype) for name, one in wanted.items() if one is not None}
    partials = plan_sweeps(plan, FORMS, config, walk, arguments, list(gradients), sum_dtype(x))
    _plan_sums(plan, partials, gradients, compute)
    return dx, *(gradients.get(name) or plan.empty((0,), x.dtype) for name in wanted)


def _plan_sums(plan: Plan, partials: dict[str, Operand], gradients: dict[str, Operand], compute: tl.dtype) -> None:
    """The partial sums added up, in one launch also where there are two kinds."""
    if len(partials) < 2:
        for name, gradient in gradients.items():
            plan_sum_of_partials(plan, partials[name], gradient, compute)
        return
    n_partials, n_columns = partials["weight"].shape
    config = partial_sum_config(plan, n_partials, n_columns)
    plan.launch(
        sum_both_partials_kernel, (triton.cdiv(n_columns, config.COLUMNS), 2), config,
        weight_partials_ptr=partials["weight"], bias_partials_ptr=partials["bias"],
        dweight_ptr=gradients["weight"], dbias_ptr=gradients["bias"],
        n_partials=n_partials, n_columns=n_columns, COMPUTE=compute,
    )  # fmt: skip
