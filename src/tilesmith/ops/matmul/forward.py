"""The product as torch operators: plain, keeping z for a gradient, and with an addend."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tilesmith.ops.matmul.matrices import as_result, factors, result_shape, with_batch_in_rows
from tilesmith.ops.matmul.planning.problem import Epilogue, Product
from tilesmith.ops.matmul.planning.product import plan_product
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.plan import Operand, Plan


@kernels("matmul_forward")
def forward(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, scale_a: Tensor | None, scale_b: Tensor | None,
    out_dtype: torch.dtype, tf32: bool,
) -> Tensor:  # fmt: skip
    return torch.empty(result_shape(a.shape, b.shape), dtype=out_dtype, device=a.device)


@forward.plan
def plan_forward(
    plan: Plan, a: Operand, b: Operand, bias: Operand | None, activation: str, scale_a: Operand | None,
    scale_b: Operand | None, out_dtype: torch.dtype, tf32: bool,
) -> Operand:  # fmt: skip
    y = plan.empty(result_shape(a.shape, b.shape), out_dtype)
    _plan_layer(plan, a, b, y, Epilogue(bias, activation, scale_a, scale_b), tf32)
    return y


@kernels("matmul_forward_keeping_z")
def forward_keeping_z(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, scale_a: Tensor | None, scale_b: Tensor | None,
    out_dtype: torch.dtype, tf32: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return y, and z = a·b + bias before the activation, which the gradients of silu and gelu need."""
    shape = result_shape(a.shape, b.shape)
    return (
        torch.empty(shape, dtype=out_dtype, device=a.device),
        torch.empty(shape, dtype=out_dtype, device=a.device),
    )


@forward_keeping_z.plan
def plan_forward_keeping_z(
    plan: Plan, a: Operand, b: Operand, bias: Operand | None, activation: str, scale_a: Operand | None,
    scale_b: Operand | None, out_dtype: torch.dtype, tf32: bool,
) -> tuple[Operand, Operand]:  # fmt: skip
    shape = result_shape(a.shape, b.shape)
    y, z = plan.empty(shape, out_dtype), plan.empty(shape, out_dtype)
    _plan_layer(plan, a, b, y, Epilogue(bias, activation, scale_a, scale_b, z), tf32)
    return y, z


@kernels("matmul_forward_with_addend")
def forward_with_addend(a: Tensor, b: Tensor, bias: Tensor | None, addend: Tensor, tf32: bool) -> Tensor:
    """Return a·b + bias + addend of matrices, for use inside other operators."""
    return torch.empty(result_shape(a.shape, b.shape), dtype=a.dtype, device=a.device)


@forward_with_addend.plan
def plan_forward_with_addend(
    plan: Plan, a: Operand, b: Operand, bias: Operand | None, addend: Operand, tf32: bool
) -> Operand:
    y = plan.empty(result_shape(a.shape, b.shape), a.dtype)
    if addend.strides != y.strides:
        raise NotWalkable(f"addend has strides {addend.strides}, but the result has {y.strides}")
    _plan_layer(plan, a, b, y, Epilogue(bias, addend=addend), tf32)
    return y


def _plan_layer(plan: Plan, a: Operand, b: Operand, y: Operand, epilogue: Epilogue, tf32: bool) -> None:
    """Put y = act(a·b · scales + bias) + addend on the plan; a batch that shares b is one product."""
    left, right, batch = factors(a, b)
    result = as_result(y, left, right)
    folded = with_batch_in_rows(batch, left, result) if right.is_shared else None
    if folded is not None:
        (left, result), right, batch = folded, replace(right, batch_strides=()), ()
    plan_product(plan, Product(left, right, result, batch, tf32, epilogue=epilogue))
