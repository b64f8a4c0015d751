"""Gate: y = x · σ(gate).

The forward moves three elements per output and the backward five, with a few flops on each: memory-bound, so each
direction is one pass. The backward computes σ(gate) again, which is cheaper than keeping it.
"""

from __future__ import annotations

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
from tilesmith.ops.runtime.arguments import require_floating, require_same_device, require_same_dtype
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_elements, tile_offsets
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate)


@triton.jit(do_not_specialize=["n_rows"])
def gate_forward_kernel(
    x_ptr, gate_ptr, y_ptr, x_strides, gate_strides, y_strides, n_rows, sizes,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)  # mask is [ROWS, BLOCK_SIZE]
    is_whole = tile_is_whole(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    for MASKED in tl.static_range(2):
        if is_whole == (MASKED == 0):
            exists = mask if MASKED else None
            x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=exists).to(COMPUTE)
            gate = tl.load(gate_ptr + tile_offsets(rows, columns, sizes, gate_strides, NESTED), mask=exists).to(COMPUTE)
            y = x * tl.sigmoid(gate)  # [ROWS, BLOCK_SIZE]
            y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
            tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["n_rows"])
def gate_backward_kernel(
    dy_ptr, x_ptr, gate_ptr, dx_ptr, dgate_ptr, dy_strides, x_strides, gate_strides, dx_strides, dgate_strides,
    n_rows, sizes, NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)  # mask is [ROWS, BLOCK_SIZE]
    is_whole = tile_is_whole(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    for MASKED in tl.static_range(2):
        if is_whole == (MASKED == 0):
            exists = mask if MASKED else None
            dy = tl.load(dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED), mask=exists).to(COMPUTE)
            x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=exists).to(COMPUTE)
            gate = tl.load(gate_ptr + tile_offsets(rows, columns, sizes, gate_strides, NESTED), mask=exists).to(COMPUTE)
            opening = tl.sigmoid(gate)
            dx = dy * opening
            dgate = dx * x * (1 - opening)  # [ROWS, BLOCK_SIZE]
            dx_pointers = dx_ptr + tile_offsets(rows, columns, sizes, dx_strides, NESTED)
            dgate_pointers = dgate_ptr + tile_offsets(rows, columns, sizes, dgate_strides, NESTED)
            tl.store(dx_pointers, dx.to(dx_ptr.dtype.element_ty), mask=exists)
            tl.store(dgate_pointers, dgate.to(dgate_ptr.dtype.element_ty), mask=exists)


@kernels("gate_forward")
def forward(x: Tensor, gate: Tensor) -> Tensor:
    return torch.empty_like(x)


@forward.plan
def plan_forward(plan: Plan, x: Operand, gate: Operand) -> Operand:
    y = plan.empty_like(x)
    walk = as_elements(y.shape, y.strides, x.strides, gate.strides)
    config = plan.choose(tile_config(walk, 2 * x.element_bytes), walk.columns_bucket, x.dtype)
    plan.launch(
        gate_forward_kernel, tile_grid(walk, config), config,
        x_ptr=x, gate_ptr=gate, y_ptr=y, **walk.arguments("y", "x", "gate"), COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip
    return y


@kernels("gate_backward")
def backward(dy: Tensor, x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(gate)


@backward.plan
def plan_backward(plan: Plan, dy: Operand, x: Operand, gate: Operand) -> tuple[Operand, Operand]:
    dx, dgate = plan.empty_like(x), plan.empty_like(gate)
    walk = as_elements(x.shape, dx.strides, dgate.strides, dy.strides, x.strides, gate.strides)
    config = plan.choose(tile_config(walk, 4 * x.element_bytes), walk.columns_bucket, x.dtype)
    plan.launch(
        gate_backward_kernel, tile_grid(walk, config), config,
        dy_ptr=dy, x_ptr=x, gate_ptr=gate, dx_ptr=dx, dgate_ptr=dgate,
        **walk.arguments("dx", "dgate", "dy", "x", "gate"), COMPUTE=compute_dtype(x.dtype),
    )  # fmt: skip
    return dx, dgate


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    context.save_for_backward(*inputs)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
    return backward(dy, *context.saved_tensors)  # type: ignore[no-any-return]  # Kernels return what they say


@operator(
    "gate", reference=reference, forward=forward, save=save, gradient=gradient, options=Options(autocasts=True)
)  # fmt: skip
def gate(x: Tensor, gate: Tensor) -> Tensor:
    """Return x · σ(gate), element by element, computed in single precision or better.

    x and gate have the same shape and dtype, in any strides. The output is laid out as x.
    """
    require_floating("gate", x=x, gate=gate)
    require_same_device("gate", x=x, gate=gate)
    if gate.shape != x.shape:
        raise ValueError(f"gate: gate has shape {tuple(gate.shape)}, but x has {tuple(x.shape)}; they must be the same")
    require_same_dtype("gate", "gate", gate, "x", x)
    return x


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    shape = (case.rows, case.cols)
    return {name: layout(torch.randn(shape, dtype=dtype, device=device)) for name in ("x", "gate")}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    return Cost(
        forward=Work(bytes=3 * elements * dtype.itemsize, flops=5 * elements),
        backward=Work(bytes=5 * elements * dtype.itemsize, flops=8 * elements),
    )


SPEC = Spec(
    name="gate",
    op=gate,
    reference=reference,
    formula="y = x · σ(gate)",
    cases=CASES,
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
