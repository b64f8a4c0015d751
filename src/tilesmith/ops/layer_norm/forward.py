"""The forward kernels, their forms and their plan."""

import math
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norms.any_width import AnyWidthForward
from tilesmith.ops.device.norms.forward import ForwardConfig, ForwardProblem, plan_rows
from tilesmith.ops.device.norms.persistent_forward import PersistentForward
from tilesmith.ops.device.norms.rows import (
    RowTensor,
    RowTile,
    Vector,
    load_tile,
    load_weight,
    store_statistics,
    store_tile,
    two_row_means,
    without_error,
)
from tilesmith.ops.layer_norm.welford import columns_per_lane, merge_lanes, product_of_steps, step_mean
from tilesmith.ops.rms_norm.forward import RmsNormRowsInBlocks, RmsNormRowsInRegisters
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit
def _scale_and_shift(
    y, weight, bias, columns, in_row,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    y *= load_weight(weight, columns, in_row, HAS_WEIGHT, COMPUTE, EVICTION)
    if HAS_BIAS:
        y += load_weight(bias, columns, in_row, HAS_BIAS, COMPUTE, EVICTION)
    return y  # [ROWS, BLOCK_SIZE]


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_forward_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, statistics_ptr, x_strides, y_strides, weight_stride, bias_stride,
    n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows per program, in registers between the sums and the scaling."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    mask = (rows < n_rows)[:, None] & in_row[None, :]
    tile = RowTile(rows, columns, mask, sizes)
    weight, bias = Vector(weight_ptr, weight_stride), Vector(bias_ptr, bias_stride)
    x = load_tile(RowTensor(x_ptr, x_strides), tile, NESTED, COMPUTE, "")  # [ROWS, BLOCK_SIZE]
    mean = (tl.sum(x, axis=1) / n_columns)[:, None]  # [ROWS, 1], rounded
    centred = tl.where(mask, x - mean, 0.0)  # [ROWS, BLOCK_SIZE]
    error, square = two_row_means(centred, centred * centred, n_columns)  # [ROWS, 1] each
    mean += error
    inverse_deviation = tl.rsqrt(without_error(square, error) + eps)  # [ROWS, 1]
    if statistics_ptr is not None:
        store_statistics(statistics_ptr, rows[:, None], mean, inverse_deviation, (rows < n_rows)[:, None])
    y = (x - mean) * inverse_deviation
    y = _scale_and_shift(y, weight, bias, columns, in_row, HAS_WEIGHT, HAS_BIAS, COMPUTE, "")
    store_tile(RowTensor(y_ptr, y_strides), y, tile, NESTED)


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_forward_blocks_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, statistics_ptr, x_strides, y_strides, weight_stride, bias_stride,
    n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in BLOCKS blocks of columns: read once for mean and variance, and again from cache."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = (rows < n_rows)[:, None]
    x_rows = RowTensor(x_ptr, x_strides)
    weight, bias = Vector(weight_ptr, weight_stride), Vector(bias_ptr, bias_stride)
    means = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    squares = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for block in range(BLOCKS - 1):  # all full, so that no column needs a mask
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        x = load_tile(x_rows, RowTile(rows, columns, in_rows, sizes), NESTED, COMPUTE, "evict_last")
        inverse_count = 1 / tl.cast(block + 1, COMPUTE)
        step, means = step_mean(means, x, True, inverse_count)
        squares += product_of_steps(step, step, inverse_count)
    columns = (BLOCKS - 1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = in_rows & (columns < n_columns)[None, :]
    x = load_tile(x_rows, RowTile(rows, columns, mask, sizes), NESTED, COMPUTE, "evict_last")  # [ROWS, BLOCK_SIZE]
    step, means = step_mean(means, x, mask, 1 / BLOCKS)
    squares += product_of_steps(step, step, 1 / BLOCKS)
    counts = columns_per_lane(n_columns, BLOCK_SIZE, COMPUTE)  # [1, BLOCK_SIZE]
    mean, apart = merge_lanes(means, counts, n_columns)  # [ROWS, 1], [ROWS, BLOCK_SIZE]
    variance = (tl.sum(squares + counts * (apart * apart), axis=1) / n_columns)[:, None]  # [ROWS, 1]
    inverse_deviation = tl.rsqrt(variance + eps)
    if statistics_ptr is not None:
        store_statistics(statistics_ptr, rows[:, None], mean, inverse_deviation, in_rows)
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = in_rows & in_row[None, :]
        tile = RowTile(rows, columns, mask, sizes)
        x = load_tile(x_rows, tile, NESTED, COMPUTE, "evict_first")  # [ROWS, BLOCK_SIZE]
        y = (x - mean) * inverse_deviation
        y = _scale_and_shift(y, weight, bias, columns, in_row, HAS_WEIGHT, HAS_BIAS, COMPUTE, "evict_last")
        store_tile(RowTensor(y_ptr, y_strides), y, tile, NESTED)


class LayerNormRowsInRegisters(RmsNormRowsInRegisters):
    """Rows of up to 2 KiB have RMSNorm's configuration. All times are an H200's in bf16."""

    kernel = layer_norm_forward_kernel

    def default(self, problem: ForwardProblem) -> ForwardConfig | None:
        block_size = bucket(problem.walk.columns)
        if not problem.columns_apart and block_size <= 256 and problem.walk.rows > 16384:
            # With statistics 221741×128 takes 32.3 µs, 34.3 with four warps; 65536×256 22.2 with eight rows, 22.9; in
            # fp32 93949×128 27.4, 34.1 with two warps.
            warps = 2 if block_size <= 128 and problem.dtype.itemsize == 2 else 4
            return ForwardConfig(num_warps=warps, ROWS=16 if block_size <= 128 else 8, BLOCK_SIZE=block_size)
        if problem.columns_apart or problem.padded_row_bytes <= 2048 or problem.padded_row_bytes > 16384:
            return super().default(problem)
        if problem.padded_row_bytes <= 8192:
            # Two rows share one read of weight and bias: 16384×4096 takes 70.2 µs, 71.2 with one row and four warps,
            # 74.9 in blocks of 1024.
            rows = 2 if problem.walk.rows > 4096 else 1
            return ForwardConfig(num_warps=4 * rows, ROWS=rows, BLOCK_SIZE=bucket(problem.walk.columns))
        # 16384×8192 takes 134 µs; in blocks of 2048 141, with sixteen warps 148.
        return ForwardConfig(num_warps=8, BLOCK_SIZE=bucket(problem.walk.columns))


class LayerNormRowsInBlocks(RmsNormRowsInBlocks):
    """Rows whose columns are apart in memory have RMSNorm's configuration."""

    kernel = layer_norm_forward_blocks_kernel

    def default(self, problem: ForwardProblem) -> ForwardConfig:
        if problem.columns_apart:
            config = super().default(problem)
            # One block of 256 spills 88 bytes on cuda:80 and 104 on cuda:89, none on later GPUs; several blocks do not.
            spills = problem.plan.architecture.target.startswith("cuda:8") and problem.walk.columns <= config.BLOCK_SIZE
            return replace(config, BLOCK_SIZE=128) if spills else config
        # One warp for 2 KiB of row, 16 bytes for each of its threads at a time: 4096×32768 takes 161 µs with sixteen
        # warps and blocks of 4096, 173 with 32 and 8192.
        element_bytes = problem.dtype.itemsize
        warps = min(max(bucket(problem.walk.columns * element_bytes // 2048 + 1) // 2, 4), 16)
        return ForwardConfig(num_warps=warps, BLOCK_SIZE=warps * 32 * 16 // element_bytes, form="blocks")


FORMS = (
    PersistentForward(centre=True),
    AnyWidthForward(centre=True),
    LayerNormRowsInRegisters(),
    LayerNormRowsInBlocks(),
)


@kernels("layer_norm_forward")
def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, keeps_statistics: bool
) -> tuple[Tensor, Tensor]:
    """Return y, and each row's mean and 1/√(variance + eps) for the backward; these are empty unless wanted."""
    rows = math.prod(x.shape[:-1]) if keeps_statistics else 0
    return torch.empty_like(x), x.new_empty((rows, 2), dtype=torch.promote_types(x.dtype, torch.float32))


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, weight: Operand | None, bias: Operand | None, eps: float, keeps_statistics: bool
) -> tuple[Operand, Operand]:
    y = plan.empty_like(x)
    rows = math.prod(x.shape[:-1]) if keeps_statistics else 0
    statistics = plan.empty((rows, 2), torch.promote_types(x.dtype, torch.float32))
    walk = as_rows(x.shape, x.strides, y.strides)
    arguments = {
        "x_ptr": x, "y_ptr": y, "weight_ptr": weight, "bias_ptr": bias, "eps": float(eps),
        "statistics_ptr": statistics if keeps_statistics else None,
        "weight_stride": weight.strides[0] if weight else 0, "bias_stride": bias.strides[0] if bias else 0,
        "HAS_WEIGHT": weight is not None, "HAS_BIAS": bias is not None, "COMPUTE": compute_dtype(x.dtype),
        **walk.arguments("x", "y"),
    }  # fmt: skip
    plan_rows(FORMS, ForwardProblem(plan, walk, x.dtype, x.element_bytes, arguments))
    return y, statistics
