"""SiLU: y = x · σ(x).

Moves two elements per output (read x, write y) and does about five flops on each: memory-bound on every GPU, so the
kernels touch each byte once. The gradient reads x and dy and writes dx. It computes σ(x) again, which is cheaper than
keeping it.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import (
    CASES,
    compute_dtype,
    few_tiles_config,
    tile_config,
    tile_grid,
    tile_is_whole,
    tile_of_program,
)
from tilesmith.ops.runtime.arguments import require_floating
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_elements, tile_offsets
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@triton.jit(do_not_specialize=["n_rows"])
def silu_forward_kernel(
    x_ptr, y_ptr, x_strides, y_strides, n_rows, sizes,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE, FLAT)  # mask is [ROWS, BLOCK_SIZE]
    is_whole = tile_is_whole(n_rows, sizes[0], ROWS, BLOCK_SIZE, FLAT)
    for MASKED in tl.static_range(2):
        if is_whole == (MASKED == 0):
            exists = mask if MASKED else None
            x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=exists).to(COMPUTE)
            y = x * tl.sigmoid(x)
            y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
            tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["n_rows"])
def silu_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, dy_strides, x_strides, dx_strides, n_rows, sizes,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)  # mask is [ROWS, BLOCK_SIZE]
    is_whole = tile_is_whole(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    for MASKED in tl.static_range(2):
        if is_whole == (MASKED == 0):
            exists = mask if MASKED else None
            dy = tl.load(dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED), mask=exists).to(COMPUTE)
            x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=exists).to(COMPUTE)
            sigmoid = tl.sigmoid(x)
            dx = dy * sigmoid * (1 + x * (1 - sigmoid))
            dx_pointers = dx_ptr + tile_offsets(rows, columns, sizes, dx_strides, NESTED)
            tl.store(dx_pointers, dx.to(dx_ptr.dtype.element_ty), mask=exists)


@kernels("silu_forward")
def forward(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand) -> Operand:
    y = plan.empty_like(x)
    walk = as_elements(x.shape, y.strides, x.strides)
    few = few_tiles_config(walk, plan.multiprocessors)
    default, name = (few, "few columns") if few else (tile_config(walk, x.element_bytes), "columns")
    config = plan.choose(default, name, walk.columns_bucket, x.dtype)
    plan.launch(
        silu_forward_kernel, tile_grid(walk, config), config,
        x_ptr=x, y_ptr=y, **walk.arguments("y", "x"),
        COMPUTE=compute_dtype(x.dtype), FLAT=few is not None and walk.rows == 1,
    )  # fmt: skip
    return y


@kernels("silu_backward")
def backward(dy: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


@backward.plan
def plan_backward(plan: Plan, dy: Operand, x: Operand) -> Operand:
    dx = plan.empty_like(x)
    walk = as_elements(x.shape, dx.strides, x.strides, dy.strides)
    config = plan.choose(tile_config(walk, 2 * x.element_bytes), "columns", walk.columns_bucket, x.dtype)
    plan.launch(
        silu_backward_kernel, tile_grid(walk, config), config,
        dy_ptr=dy, x_ptr=x, dx_ptr=dx, **walk.arguments("dx", "x", "dy"),
        COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip
    return dx


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    context.save_for_backward(*inputs)


def gradient(context: Any, dy: Tensor) -> Tensor:
    (x,) = context.saved_tensors
    return backward(dy, x)  # type: ignore[no-any-return]  # Kernels return what their schema says


@operator("silu", reference=reference, native=F.silu, forward=forward, save=save, gradient=gradient)
def silu(x: Tensor) -> Tensor:
    """Return x · σ(x), element by element, in x's dtype and computed in single precision or better."""
    require_floating("silu", x=x)
    return x


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    return {"x": layout(torch.randn(case.rows, case.cols, dtype=dtype, device=device))}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    return Cost(
        forward=Work(bytes=2 * elements * dtype.itemsize, flops=5 * elements),
        backward=Work(bytes=3 * elements * dtype.itemsize, flops=9 * elements),
    )


SPEC = Spec(
    name="silu",
    op=silu,
    reference=reference,
    formula="y = x · σ(x)",
    cases=CASES,
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": F.silu},
)
