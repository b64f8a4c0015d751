"""The gradient: with c = x − mean(x), r = 1/√(mean(c²) + eps) and g = dy · w,

dx = r · (g − mean(g)) − c · r³ · mean(g · c),    dw = Σ over rows of dy · c · r,    db = Σ over rows of dy,

and where x goes on past the norm, as it does around a residual branch, dsum of what comes after is added to dx. A bias
that the branch ends with has the gradient Σ over rows of dsum, which costs no pass of its own here.

The forms are those of every norm: see `rms_norm/sweeps.py`.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norm_backward import BackwardConfig, Forms, backward_config, plan_sweeps, sum_dtype
from tilesmith.ops.device.norm_rows import added_in_turn, both_means, folded, load_tile, load_weight, store_tile
from tilesmith.ops.device.partial_sums import partial_sum_config, plan_sum_of_partials, sum_partials_kernel
from tilesmith.ops.layer_norm.moments import merged_mean, places_taken, squared, stepped
from tilesmith.ops.rms_norm.backward import parameter_like
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr, dsum_ptr, dsum_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Whole rows, ROWS at a time; every program takes each n-th group of rows."""
    n_columns = sizes[0]
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "")
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    bias_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    dsum_total = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    first = tl.program_id(0).to(tl.int64)
    for group in tl.range(first, tl.cdiv(n_rows, ROWS), tl.num_programs(0), num_stages=PIPELINE):
        rows = group * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & in_row[None, :]
        x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, "")
        dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, "")
        if SUM_GRADIENT:
            dsum = load_tile(dsum_ptr, rows, columns, mask, sizes, dsum_strides, NESTED, COMPUTE, "")
        scaled = dy * weight
        mean, scaled_mean = both_means(x, scaled, n_columns)
        centred = tl.where(mask, x - mean, 0.0)
        variance, projection = both_means(centred * centred, scaled * centred, n_columns)
        inverse_deviation = tl.rsqrt(variance + eps)
        normed = centred * inverse_deviation
        dx = inverse_deviation * (scaled - scaled_mean - normed * (inverse_deviation * projection))
        if SUM_GRADIENT:
            dx += dsum
        store_tile(dx_ptr, dx, rows, columns, mask, sizes, dx_strides, NESTED)
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
    dy_ptr, x_ptr, dx_ptr, dsum_ptr, dy_strides, x_strides, dx_strides, dsum_strides,
    weight, mean, inverse_deviation, scaled_mean, correction, rows, columns, mask, sizes,
    SUM_GRADIENT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Stores dx of a tile whose rows' statistics are known; returns what its elements add to dw, to db, and to the sum
    of dsum."""
    x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, EVICTION)
    dy = load_tile(dy_ptr, rows, columns, mask, sizes, dy_strides, NESTED, COMPUTE, EVICTION)
    centred = x - mean
    dx = inverse_deviation * (dy * weight - scaled_mean) - centred * correction
    dsum = tl.zeros_like(dy)
    if SUM_GRADIENT:
        dsum = load_tile(dsum_ptr, rows, columns, mask, sizes, dsum_strides, NESTED, COMPUTE, "")
        dx += dsum
    store_tile(dx_ptr, dx, rows, columns, mask, sizes, dx_strides, NESTED)
    return dy * (centred * inverse_deviation), dy, dsum


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
    dy_ptr, x_ptr, dx_ptr, weight_ptr, weight_partials_ptr, bias_partials_ptr, dsum_ptr, dsum_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FIRST_BLOCK_SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """One row at a time, in blocks: read for its statistics, and again from cache for dx."""
    n_columns = sizes[0]
    weight_gradients = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    bias_gradients = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
    dsum_totals = (tl.zeros([1, BLOCK_SIZE], COMPUTE),) * BLOCKS
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
            added, dy, dsum = _tile_gradient(
                dy_ptr, x_ptr, dx_ptr, dsum_ptr, dy_strides, x_strides, dx_strides, dsum_strides,
                weight, mean, inverse_deviation, scaled_mean, correction, rows, columns, in_row[None, :], sizes,
                SUM_GRADIENT, NESTED, COMPUTE, "evict_first",
            )  # fmt: skip
            if WEIGHT_GRADIENT:
                weight_gradients = added_in_turn(weight_gradients, added)
            if BIAS_GRADIENT:
                bias_gradients = added_in_turn(bias_gradients, dy)
            if dsum_partials_ptr is not None:
                dsum_totals = added_in_turn(dsum_totals, dsum)
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
    dsum_ptr, dsum_partials_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, rows_per_share, sizes,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, SUM_GRADIENT: tl.constexpr,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Second of two sweeps: dx in tiles, and what a share of the rows adds to the sums for a block of columns."""
    n_columns = sizes[0]
    blocks_per_row = tl.cdiv(n_columns, BLOCK_SIZE)
    columns = tl.program_id(0) % blocks_per_row * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    share = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    weight = load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, "")
    weight_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    bias_gradient = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    dsum_total = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for start in range(0, rows_per_share, ROWS):
        rows = share * rows_per_share + start + tl.arange(0, ROWS)
        in_rows = (rows < n_rows)[:, None]
        statistics = statistics_ptr + 4 * rows[:, None]
        mean = tl.load(statistics, mask=in_rows, other=0.0)
        inverse_deviation = tl.load(statistics + 1, mask=in_rows, other=0.0)
        scaled_mean = tl.load(statistics + 2, mask=in_rows, other=0.0)
        correction = tl.load(statistics + 3, mask=in_rows, other=0.0)
        added, dy, dsum = _tile_gradient(
            dy_ptr, x_ptr, dx_ptr, dsum_ptr, dy_strides, x_strides, dx_strides, dsum_strides,
            weight, mean, inverse_deviation, scaled_mean, correction, rows, columns, in_rows & in_row[None, :], sizes,
            SUM_GRADIENT, NESTED, COMPUTE, "",
        )  # fmt: skip
        if WEIGHT_GRADIENT:
            weight_gradient += added
        if BIAS_GRADIENT:
            bias_gradient += dy
        if dsum_partials_ptr is not None:
            dsum_total += dsum
    if WEIGHT_GRADIENT:
        tl.store(weight_partials_ptr + share * n_columns + columns, tl.sum(weight_gradient, axis=0), mask=in_row)
    if BIAS_GRADIENT:
        tl.store(bias_partials_ptr + share * n_columns + columns, tl.sum(bias_gradient, axis=0), mask=in_row)
    if dsum_partials_ptr is not None:
        tl.store(dsum_partials_ptr + share * n_columns + columns, tl.sum(dsum_total, axis=0), mask=in_row)


@triton.jit(do_not_specialize=["n_partials"])
def sum_several_partials_kernel(
    weight_partials_ptr, bias_partials_ptr, dsum_partials_ptr, dweight_ptr, dbias_ptr, dsum_total_ptr,
    n_partials, n_columns, COMPUTE: tl.constexpr, PARTIALS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums for weight and bias, and that of dsum if there is one, in one launch: the second dimension of the grid
    says which."""
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
# With another gradient to add, two rows of 2048 at a time spill with Triton 3.9.
ADDING_FORMS = replace(FORMS, sweeps={**FORMS.sweeps, 2048: (1, 8, 2, 3)})
# With a third sum, so do rows of 8192 in registers, and three blocks of 4096 in cache.
BRANCH_FORMS = replace(
    ADDING_FORMS,
    sweeps={columns: sweep for columns, sweep in ADDING_FORMS.sweeps.items() if columns < 8192},
    most_cached_bytes=49152,
)
# And so do more where loads are narrow, each with an address.
UNEVEN_BRANCH_FORMS = replace(
    BRANCH_FORMS, sweeps={**BRANCH_FORMS.sweeps, 256: (8, 4, 4, 3), 512: (2, 2, 4, 3), 1024: (1, 4, 4, 3)}
)


@kernels("layer_norm_backward")
def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    weight_gradient: bool, bias_gradient: bool, dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dx, to which dsum is added, dw and db; those of the parameters are empty where they are not wanted. Of bias only
    the look counts."""
    return (
        torch.empty_like(x),
        parameter_like(x, weight, weight_gradient),
        parameter_like(x, bias, bias_gradient),
    )


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, bias: Operand | None, eps: float,
    weight_gradient: bool, bias_gradient: bool, dsum: Operand | None = None,
) -> tuple[Operand, ...]:  # fmt: skip
    wanted = {"weight": weight if weight_gradient else None, "bias": bias if bias_gradient else None}
    sums = {name: plan.empty(one.shape, one.dtype) for name, one in wanted.items() if one is not None}
    dx = _plan_gradient(plan, ADDING_FORMS if dsum else FORMS, dy, x, weight, eps, dsum, sums)
    return dx, *(sums.get(name) or plan.empty((0,), x.dtype) for name in wanted)


@kernels("layer_norm_branch_backward")
def branch_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dsum: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, to which dsum is added, dw, db, and the sum of dsum over rows. Of bias only the look counts."""
    return (
        torch.empty_like(x),
        parameter_like(x, weight, True),
        parameter_like(x, bias, True),
        x.new_empty(x.shape[-1:]),
    )


@branch_backward.plan
def plan_branch_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand, bias: Operand, eps: float, dsum: Operand
) -> tuple[Operand, ...]:
    sums = {
        "weight": plan.empty(weight.shape, weight.dtype),
        "bias": plan.empty(bias.shape, bias.dtype),
        "dsum": plan.empty(x.shape[-1:], x.dtype),
    }
    strides = [stride for one in (dy, x, dsum) for stride in one.strides if stride > 1]
    forms = UNEVEN_BRANCH_FORMS if any(size % 16 for size in (x.shape[-1], *strides)) else BRANCH_FORMS
    return _plan_gradient(plan, forms, dy, x, weight, eps, dsum, sums), *sums.values()


def _plan_gradient(
    plan: Plan, forms: Forms, dy: Operand, x: Operand, weight: Operand | None, eps: float, dsum: Operand | None,
    sums: dict[str, Operand],
) -> Operand:  # fmt: skip
    """dx and, in their places, the wanted sums over rows."""
    dx = plan.empty_like(x)
    others = {} if dsum is None else {"dsum": dsum}
    walk = as_rows(x.shape, x.strides, dy.strides, dx.strides, *(operand.strides for operand in others.values()))
    compute = compute_dtype(x.dtype)
    arguments = {
        "dy_ptr": dy, "x_ptr": x, "dx_ptr": dx, "weight_ptr": weight, "dsum_ptr": dsum, "eps": float(eps),
        "weight_stride": weight.strides[0] if weight else 0, "dsum_strides": None, "dsum_partials_ptr": None,
        "HAS_WEIGHT": weight is not None, "SUM_GRADIENT": dsum is not None, "COMPUTE": compute,
        **walk.arguments("x", "dy", "dx", *others),
    }  # fmt: skip
    bytes_read = x.element_bytes + dy.element_bytes + (dsum.element_bytes if dsum else 0)
    default = backward_config(walk, bytes_read, forms, plan.multiprocessors, plan.architecture.shared_bytes)
    config = plan.choose(default, walk.columns_bucket, x.dtype)
    partials = plan_sweeps(plan, forms, config, walk, arguments, list(sums), sum_dtype(x))
    _plan_sums(plan, partials, sums, compute)
    return dx


def _plan_sums(plan: Plan, partials: dict[str, Operand], sums: dict[str, Operand], compute: tl.dtype) -> None:
    """The partial sums added up, in one launch also where there are several kinds."""
    if len(partials) < 2:
        for name, total in sums.items():
            plan_sum_of_partials(plan, partials[name], total, compute)
        return
    n_partials, n_columns = partials["weight"].shape
    config = partial_sum_config(plan, n_partials, n_columns)
    plan.launch(
        sum_several_partials_kernel, (triton.cdiv(n_columns, config.COLUMNS), len(sums)), config,
        weight_partials_ptr=partials["weight"], bias_partials_ptr=partials["bias"],
        dsum_partials_ptr=partials.get("dsum"), dweight_ptr=sums["weight"], dbias_ptr=sums["bias"],
        dsum_total_ptr=sums.get("dsum"), n_partials=n_partials, n_columns=n_columns, COMPUTE=compute,
    )  # fmt: skip
