"""A gate on what attention gives: y = x · σ(gate).

Moves three elements per output forward and five backward, a few flops on each: memory-bound, one pass each.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype, tile_config, tile_grid, tile_of_program
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_elements, tile_offsets
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan


def reference(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate)


@triton.jit(do_not_specialize=["n_rows"])
def gate_forward_kernel(
    x_ptr, gate_ptr, y_ptr, x_strides, gate_strides, y_strides, n_rows, sizes,
    NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=mask).to(COMPUTE)
    gate = tl.load(gate_ptr + tile_offsets(rows, columns, sizes, gate_strides, NESTED), mask=mask).to(COMPUTE)
    y = x * tl.sigmoid(gate)
    y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
    tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows"])
def gate_backward_kernel(
    dy_ptr, x_ptr, gate_ptr, dx_ptr, dgate_ptr, dy_strides, x_strides, gate_strides, dx_strides, dgate_strides,
    n_rows, sizes, NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    dy = tl.load(dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED), mask=mask).to(COMPUTE)
    x = tl.load(x_ptr + tile_offsets(rows, columns, sizes, x_strides, NESTED), mask=mask).to(COMPUTE)
    gate = tl.load(gate_ptr + tile_offsets(rows, columns, sizes, gate_strides, NESTED), mask=mask).to(COMPUTE)
    opening = tl.sigmoid(gate)
    dx = dy * opening
    dgate = dx * x * (1 - opening)
    dx_pointers = dx_ptr + tile_offsets(rows, columns, sizes, dx_strides, NESTED)
    dgate_pointers = dgate_ptr + tile_offsets(rows, columns, sizes, dgate_strides, NESTED)
    tl.store(dx_pointers, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(dgate_pointers, dgate.to(dgate_ptr.dtype.element_ty), mask=mask)


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
def gated(x: Tensor, gate: Tensor) -> Tensor:
    """x · σ(gate), of tensors of one shape and dtype, as the operators that are gated have checked."""
    return x
