"""The forward kernels and what they are launched with."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.elementwise import compute_dtype
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows, tile_offsets
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_forward_kernel(
    x_ptr, weight_ptr, y_ptr, x_strides, weight_stride, y_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows per program, kept in registers between the sum and the scaling."""
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=mask, other=0.0).to(COMPUTE)
    y = x * tl.rsqrt(tl.sum(x * x, axis=1) / n_columns + eps)[:, None]
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + columns * weight_stride, mask=columns < n_columns, other=0.0)
        y *= weight.to(COMPUTE)[None, :]
    y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
    tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows"])
def rms_norm_forward_blocks_kernel(
    x_ptr, weight_ptr, y_ptr, x_strides, weight_stride, y_strides, n_rows, sizes, eps,
    HAS_WEIGHT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, in BLOCKS blocks of columns: read once for the sum, and again from cache for the result.

    Registers that hold no row leave room for more programs, and so for more loads under way: on an H200 in bf16
    16384×8192 takes 127 µs, where keeping the row takes 131; 4096×32768 takes 129 µs instead of 138.
    """
    n_columns = sizes[0]
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = (rows < n_rows)[:, None]
    squares = tl.zeros([ROWS, BLOCK_SIZE], COMPUTE)
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = in_rows & (columns < n_columns)[None, :]
        x_pointers = x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED)
        x = tl.load(x_pointers, mask=mask, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        squares += x * x
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=1) / n_columns + eps)[:, None]
    for block in range(BLOCKS):
        columns = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        in_row = columns < n_columns
        mask = in_rows & in_row[None, :]
        x_pointers = x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED)
        y = tl.load(x_pointers, mask=mask, other=0.0, eviction_policy="evict_first").to(COMPUTE) * inverse_rms
        if HAS_WEIGHT:
            weight_pointers = weight_ptr + columns * weight_stride
            weight = tl.load(weight_pointers, mask=in_row, other=0.0, eviction_policy="evict_last")
            y *= weight.to(COMPUTE)[None, :]
        y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
        tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time."""

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    in_registers: bool = True  # whole rows are kept between the sum and the scaling


def forward_config(walk: Rows, element_bytes: int) -> ForwardConfig:
    if walk.column_strides[0] != 1:  # neighbouring rows are neighbours in memory: read them together
        return ForwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=256, in_registers=False)
    block_size = bucket(walk.columns)
    if block_size <= 256:  # 4096×128: 2.0 µs in bf16, 2.3 in fp32; with four rows and two warps 2.1 and 2.4
        return ForwardConfig(num_warps=8, ROWS=min(16, bucket(walk.rows)), BLOCK_SIZE=block_size)
    if block_size * element_bytes <= 2048:
        # A warp alone needs no barrier: 16384×512 bf16 from memory takes 9.4 µs with two rows and one warp, 10.4 with
        # eight and four. Few rows are spread thinner: 1024×512 takes 2.0 µs one by one, 2.5 by eights.
        return ForwardConfig(num_warps=1, ROWS=2 if walk.rows > 4096 else 1, BLOCK_SIZE=block_size)
    # One warp per KiB of row, rounded down: 4096×5120 bf16 takes 22.3 µs with eight warps, 25.3 with sixteen.
    row_bytes = walk.columns * element_bytes
    warps = min(max(bucket(row_bytes // 1024 + 1) // 2, 4), 32)
    # Small blocks waste least on odd widths; wide rows want large ones: 4096×32768 129 µs with 8192, 130 with 4096.
    block_size = 4096 // element_bytes if row_bytes <= 16384 else 16384 // element_bytes
    return ForwardConfig(num_warps=warps, BLOCK_SIZE=block_size, in_registers=False)


@kernels("rms_norm_forward")
def forward(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, weight: Operand | None, eps: float) -> Operand:
    y = plan.empty_like(x)
    walk = as_rows(x.shape, x.strides, y.strides)
    config = plan.choose(forward_config(walk, x.element_bytes), walk.columns_bucket, x.dtype)
    arguments = {
        "x_ptr": x, "weight_ptr": weight, "y_ptr": y, "eps": float(eps), **walk.arguments("x", "y"),
        "weight_stride": weight.strides[0] if weight else 0, "HAS_WEIGHT": weight is not None,
        "COMPUTE": compute_dtype(x.dtype),
    }  # fmt: skip
    grid = (triton.cdiv(walk.rows, config.ROWS) if walk.columns else 0,)
    if config.in_registers and walk.columns <= config.BLOCK_SIZE:
        plan.launch(rms_norm_forward_kernel, grid, config, **arguments)
    else:
        blocks = triton.cdiv(walk.columns, config.BLOCK_SIZE)
        plan.launch(rms_norm_forward_blocks_kernel, grid, config, **arguments, BLOCKS=blocks)
    return y
