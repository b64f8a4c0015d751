"""The forward kernels and what they are launched with."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norm_rows import load_tile, load_weight, store_tile
from tilesmith.ops.layer_norm.moments import merged_mean, places_taken, squared, stepped
from tilesmith.ops.rms_norm.forward import ForwardConfig, forward_config
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit
def _scaled_and_shifted(
    y, weight_ptr, bias_ptr, weight_stride, bias_stride, columns, in_row,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, COMPUTE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    y *= load_weight(weight_ptr, weight_stride, columns, in_row, HAS_WEIGHT, COMPUTE, EVICTION)
    if HAS_BIAS:
        y += load_weight(bias_ptr, bias_stride, columns, in_row, HAS_BIAS, COMPUTE, EVICTION)
    return y


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_forward_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, x_strides, y_strides, weight_stride, bias_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows per program, kept in registers between the sums and the scaling."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    in_row = columns < n_columns
    mask = (rows < n_rows)[:, None] & in_row[None, :]
    x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, "")
    centred = tl.where(mask, x - (tl.sum(x, axis=1) / n_columns)[:, None], 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=1) / n_columns + eps)[:, None]
    y = _scaled_and_shifted(
        y, weight_ptr, bias_ptr, weight_stride, bias_stride, columns, in_row, HAS_WEIGHT, HAS_BIAS, COMPUTE, ""
    )
    store_tile(y_ptr, y, rows, columns, mask, sizes, y_strides, NESTED)


@triton.jit(do_not_specialize=["n_rows"])
def layer_norm_forward_blocks_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, x_strides, y_strides, weight_stride, bias_stride, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in BLOCKS blocks of columns: read once for mean and variance, and again from cache."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = (rows < n_rows)[:, None]
    means = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    squares = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for block in range(BLOCKS - 1):  # all are full, so that no element is asked whether it is one
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        x = load_tile(x_ptr, rows, columns, in_rows, sizes, x_strides, NESTED, COMPUTE, "evict_last")
        share = 1 / tl.cast(block + 1, COMPUTE)
        step, means = stepped(means, x, True, share)
        squares += squared(step, step, share)
    columns = (BLOCKS - 1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = in_rows & (columns < n_columns)[None, :]
    x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, "evict_last")
    step, means = stepped(means, x, mask, 1 / BLOCKS)
    squares += squared(step, step, 1 / BLOCKS)
    taken = places_taken(n_columns, BLOCK_SIZE, COMPUTE)
    mean, apart = merged_mean(means, taken, n_columns)
    variance = (tl.sum(squares + taken * (apart * apart), axis=1) / n_columns)[:, None]
    inverse_deviation = tl.rsqrt(variance + eps)
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = in_rows & in_row[None, :]
        x = load_tile(x_ptr, rows, columns, mask, sizes, x_strides, NESTED, COMPUTE, "evict_first")
        y = _scaled_and_shifted(
            (x - mean) * inverse_deviation, weight_ptr, bias_ptr, weight_stride, bias_stride, columns, in_row,
            HAS_WEIGHT, HAS_BIAS, COMPUTE, "evict_last",
        )  # fmt: skip
        store_tile(y_ptr, y, rows, columns, mask, sizes, y_strides, NESTED)


def layer_norm_config(walk: Rows, element_bytes: int) -> ForwardConfig:
    """Short rows, and rows whose columns are apart in memory, as in rms_norm. The figures are an H200's in bf16."""
    block_size = bucket(walk.columns)
    if walk.column_strides[0] != 1 or block_size * element_bytes <= 2048:
        return forward_config(walk, element_bytes)
    if block_size * element_bytes <= 8192:
        # Two rows share a read of weight and bias: 16384×4096 takes 70.2 µs so, 71.2 one by one with four warps, 74.9
        # in blocks of 1024.
        rows = 2 if walk.rows > 4096 else 1
        return ForwardConfig(num_warps=4 * rows, ROWS=rows, BLOCK_SIZE=block_size)
    if block_size * element_bytes <= 16384:
        # 16384×8192 takes 134 µs, in blocks of 2048 141, with sixteen warps 148.
        return ForwardConfig(num_warps=8, BLOCK_SIZE=block_size)
    # One warp for 2 KiB of row, 16 bytes for each of its threads at a time: 4096×32768 takes 161 µs with sixteen and
    # blocks of 4096, 173 with 32 and 8192.
    warps = min(max(bucket(walk.columns * element_bytes // 2048 + 1) // 2, 4), 16)
    return ForwardConfig(num_warps=warps, BLOCK_SIZE=warps * 32 * 16 // element_bytes, in_registers=False)


@kernels("layer_norm_forward")
def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, weight: Operand | None, bias: Operand | None, eps: float) -> Operand:
    y = plan.empty_like(x)
    walk = as_rows(x.shape, x.strides, y.strides)
    config = plan.choose(layer_norm_config(walk, x.element_bytes), walk.columns_bucket, x.dtype)
    arguments = {
        "x_ptr": x, "y_ptr": y, "weight_ptr": weight, "bias_ptr": bias, "eps": float(eps),
        "weight_stride": weight.strides[0] if weight else 0, "bias_stride": bias.strides[0] if bias else 0,
        "HAS_WEIGHT": weight is not None, "HAS_BIAS": bias is not None, "COMPUTE": compute_dtype(x.dtype),
        **walk.arguments("x", "y"),
    }  # fmt: skip
    grid = (triton.cdiv(walk.rows, config.ROWS) if walk.columns else 0,)
    if config.in_registers and walk.columns <= config.BLOCK_SIZE:
        plan.launch(layer_norm_forward_kernel, grid, config, **arguments)
    else:
        blocks = triton.cdiv(walk.columns, config.BLOCK_SIZE)
        plan.launch(layer_norm_forward_blocks_kernel, grid, config, **arguments, BLOCKS=blocks)
    return y
