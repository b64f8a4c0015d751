"""Multiplying kept gradients by what comes in: y = factor · x, for a factor that only the GPU knows.

torch.mul would round the factor to the gradient's dtype first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.linear_cross_entropy.in_place import InPlace
from tilesmith.ops.runtime.elementwise import compute_dtype, tile_config, tile_grid, tile_of_program
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_rows, tile_offsets
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows"])
def scale_kernel(
    x_ptr, factor_ptr, y_ptr, x_strides, y_strides, n_rows, sizes,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=mask).to(COMPUTE)
    y = x * tl.load(factor_ptr).to(COMPUTE)
    y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
    tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=mask)


@kernels("linear_cross_entropy_scaled")
def scaled(x: Tensor, factor: Tensor) -> Tensor:
    return torch.empty_like(x)


@scaled.plan
def plan_scaled(plan: Plan, x: Operand, factor: Operand) -> Operand:
    y = plan.empty_like(x)
    plan_scale(plan, x, factor, y)
    return y


def plan_scale(plan: Plan, x: Operand, factor: Operand, y: Operand) -> None:
    """Put on the plan: y = factor · x. y may be x."""
    walk = as_rows(x.shape, y.strides, x.strides)
    config = plan.choose(tile_config(walk, x.element_bytes), walk.columns_bucket, x.dtype)
    plan.launch(
        scale_kernel, tile_grid(walk, config), config,
        x_ptr=x, factor_ptr=factor, y_ptr=y, **walk.arguments("y", "x"), COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip


scale_ = InPlace(scaled, lambda plan, x, factor: plan_scale(plan, x, factor, x), overwrites=0)
