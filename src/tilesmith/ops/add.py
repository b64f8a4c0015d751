"""Addition: z = x + y, with broadcasting.

Moves three elements per output and does one flop on each: memory-bound on every GPU. The gradient is dz, summed over
the broadcast dimensions; without broadcasting it moves nothing.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import (
    CASES,
    compute_dtype,
    tile_config,
    tile_grid,
    tile_is_whole,
    tile_of_program,
)
from tilesmith.ops.runtime.arguments import require_floating, require_same_device
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_elements, tile_offsets
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@triton.jit(do_not_specialize=["n_rows"])
def add_kernel(
    x_ptr, y_ptr, z_ptr, x_strides, y_strides, z_strides, n_rows, sizes,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)  # mask is [ROWS, BLOCK_SIZE]
    is_whole = tile_is_whole(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    for MASKED in tl.static_range(2):
        if is_whole == (MASKED == 0):
            exists = mask if MASKED else None
            x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=exists).to(COMPUTE)
            y = tl.load(y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED), mask=exists).to(COMPUTE)
            z_pointers = z_ptr + tile_offsets(rows, columns, sizes, z_strides, NESTED)
            tl.store(z_pointers, (x + y).to(z_ptr.dtype.element_ty), mask=exists)


@kernels("add_forward")
def forward(x: Tensor, y: Tensor) -> Tensor:
    """Return z in the layout of x, or contiguous where x is broadcast."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    dtype = _result_dtype(x, y)
    if x.shape == shape:
        return torch.empty_like(x, dtype=dtype)
    return torch.empty(shape, dtype=dtype, device=x.device)


@forward.plan
def plan_forward(plan: Plan, x: Operand, y: Operand) -> Operand:
    shape = tuple(torch.broadcast_shapes(x.shape, y.shape))
    dtype = _result_dtype(x, y)
    z = plan.empty_like(x, dtype) if x.shape == shape else plan.empty(shape, dtype)
    walk = as_elements(shape, z.strides, _broadcast_strides(x, shape), _broadcast_strides(y, shape))
    config = plan.choose(tile_config(walk, x.element_bytes + y.element_bytes), "columns", walk.columns_bucket, dtype)
    plan.launch(
        add_kernel, tile_grid(walk, config), config,
        x_ptr=x, y_ptr=y, z_ptr=z, **walk.arguments("z", "x", "y"),
        COMPUTE=compute_dtype(dtype),
    )  # fmt: skip
    return z


def _result_dtype(x: Tensor | Operand, y: Tensor | Operand) -> torch.dtype:
    """Return what torch.result_type gives for floating-point tensors: one without dimensions does not promote."""
    if bool(x.shape) != bool(y.shape):
        return x.dtype if x.shape else y.dtype
    return torch.promote_types(x.dtype, y.dtype)


def with_number_as_tensor(x: Any, y: Any) -> tuple[Any, Any]:
    """Return the arguments with a number y as a tensor, in a dtype that does not promote x's."""
    if isinstance(x, Tensor) and isinstance(y, (int, float)) and not isinstance(y, bool):
        return x, torch.full((), y, dtype=torch.float64 if x.ndim else x.dtype, device=x.device)
    return x, y


def _broadcast_strides(operand: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides over the broadcast shape: zero along dimensions that the operand lacks or has one element in."""
    missing = len(shape) - len(operand.shape)
    kept = (
        0 if size == 1 and full != 1 else stride
        for size, stride, full in zip(operand.shape, operand.strides, shape[missing:], strict=True)
    )
    return (*(0,) * missing, *kept)


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, y = inputs
    context.shapes, context.dtypes = (x.shape, y.shape), (x.dtype, y.dtype)


def gradient(context: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(
        dz.sum_to_size(shape).to(dtype) if needed else None
        for needed, shape, dtype in zip(context.needs_input_grad[:2], context.shapes, context.dtypes, strict=True)
    )


@operator(
    "add", reference=reference, forward=forward, save=save, gradient=gradient,
    options=Options(complete=with_number_as_tensor),
)  # fmt: skip
def add(x: Tensor, y: Tensor | float) -> Tensor:
    """Return x + y, element by element, with PyTorch's rules for broadcasting and for the dtype of the result.

    y may be a number. A number, or a tensor without dimensions, leaves the dtype of the other tensor.
    """
    other: Any = y  # a number has become a tensor
    require_floating("add", x=x, y=other)
    require_same_device("add", x=x, y=other)
    try:
        torch.broadcast_shapes(x.shape, other.shape)
    except RuntimeError:
        raise ValueError(
            f"add: y has shape {tuple(other.shape)}, which does not broadcast with x of shape {tuple(x.shape)}"
        ) from None
    return x


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    shape = (case.rows, case.cols)
    return {
        "x": layout(torch.randn(shape, dtype=dtype, device=device)),
        "y": layout(torch.randn(shape, dtype=dtype, device=device)),
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    return Cost(forward=Work(bytes=3 * elements * dtype.itemsize, flops=elements), backward=Work(bytes=0, flops=0))


SPEC = Spec(
    name="add",
    op=add,
    reference=reference,
    formula="z = x + y",
    cases=CASES,
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": torch.add},
)
