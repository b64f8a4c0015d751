"""Kept gradients times the incoming gradient: y = factor · x, for a factor that only the GPU knows.

torch.mul would round the factor to the gradient's dtype first. `loss.backward()` starts with a factor of one. In place,
each program of the persistent kernel then reads the factor and returns.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import TileConfig, compute_dtype, tile_config, tile_grid
from tilesmith.ops.runtime.composing.in_place import InPlace
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows, tile_offsets
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows", "in_place"])
def scale_kernel(
    x_ptr, factor_ptr, y_ptr, x_strides, y_strides, n_rows, sizes, in_place,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Write factor · x. Each program takes every n-th tile."""
    factor = tl.load(factor_ptr).to(COMPUTE)
    blocks_per_row = tl.cdiv(sizes[0], BLOCK_SIZE)
    tiles = tl.cdiv(n_rows, ROWS).to(tl.int64) * blocks_per_row
    tiles = tl.where((in_place != 0) & (factor == 1), 0, tiles)
    for tile in range(tl.program_id(0).to(tl.int64), tiles, tl.num_programs(0)):
        rows = tile // blocks_per_row * ROWS + tl.arange(0, ROWS)
        columns = tile % blocks_per_row * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = (rows < n_rows)[:, None] & (columns < sizes[0])[None, :]
        x_pointers = x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED)
        x = tl.load(x_pointers, mask=mask).to(COMPUTE)  # [ROWS, BLOCK_SIZE]
        y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
        tl.store(y_pointers, (x * factor).to(y_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class ScaleConfig(TileConfig):
    """Tiles of ROWS × BLOCK_SIZE elements, and as many programs as a multiprocessor holds at once."""

    programs_per_multiprocessor: int = 16


@kernels("linear_cross_entropy_scaled")
def scaled(x: Tensor, factor: Tensor) -> Tensor:
    return torch.empty_like(x)


@scaled.plan
def plan_scaled(plan: Plan, x: Operand, factor: Operand) -> Operand:
    y = plan.empty_like(x)
    plan_scale(plan, x, factor, y)
    return y


def plan_scale(plan: Plan, x: Operand, factor: Operand, y: Operand) -> None:
    """Put y = factor · x on the plan. y may be x."""
    walk = as_rows(x.shape, y.strides, x.strides)
    tile = tile_config(walk, x.element_bytes)
    default = ScaleConfig(num_warps=tile.num_warps, ROWS=tile.ROWS, BLOCK_SIZE=tile.BLOCK_SIZE)
    config = plan.choose(default, walk.columns_bucket, x.dtype)
    programs = min(*tile_grid(walk, config), plan.multiprocessors * config.programs_per_multiprocessor)
    plan.launch(
        scale_kernel, (programs,), config,
        x_ptr=x, factor_ptr=factor, y_ptr=y, **walk.arguments("y", "x"), in_place=int(y is x),
        COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip


scale_ = InPlace(scaled, lambda plan, x, factor: plan_scale(plan, x, factor, x), overwrites=0)
