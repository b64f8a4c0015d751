"""The fused triangle multiplicative update as torch operators, and the forms that may compute it.

The forward takes three kernels; only a, b and their product x pass through memory between them. FORMS lists the forms
in order of preference. To add one: write its `suits`, `plan_forward` and `plan_backward`, make a `Form` of them, and
put it in FORMS before PORTABLE, which suits every problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.fused import backward as portable_backward
from tilesmith.ops.triangle_multiply.fused import forward as portable_forward
from tilesmith.ops.triangle_multiply.hopper import backward as hopper_backward
from tilesmith.ops.triangle_multiply.hopper import forward as hopper_forward
from tilesmith.ops.triangle_multiply.hopper.launch import suits_hopper
from tilesmith.ops.triangle_multiply.parameters import Parameters
from tilesmith.ops.triangle_multiply.problem import Problem, matrices_shape, product_dtype


@dataclass(frozen=True)
class Form:
    """The kernels of one form of the fused update.

    `suits(plan, problem, *pair_tensors)`: whether the form computes the problem; `pair_tensors` have z's shape, as dy.
    Forward and backward choose their form separately, so all forms use one layout of a, b and x.
    """

    suits: Callable[..., bool]
    plan_forward: Callable[..., None]
    plan_backward: Callable[..., tuple[Operand, ...]]


HOPPER = Form(suits_hopper, hopper_forward.plan_forward, hopper_backward.plan_backward)  # Hopper, bf16, 128 channels
PORTABLE = Form(lambda *_: True, portable_forward.plan_forward, portable_backward.plan_backward)
FORMS = (HOPPER, PORTABLE)


def form_of(plan: Plan, problem: Problem, *pair_tensors: Operand) -> Form:
    """Return the first form that suits."""
    return next(form for form in FORMS if form.suits(plan, problem, *pair_tensors))


@kernels("triangle_multiply_forward")
@flat_arguments
def forward(
    z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], outgoing: bool, eps: float, tf32: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, and for the backward a, b and their product x: a matrix for each hidden channel, rows padded."""
    shape = matrices_shape(z.shape, parameters.output_weight.shape[1])
    x = z.new_empty(shape, dtype=product_dtype(z.dtype))
    return torch.empty_like(z), z.new_empty(shape), z.new_empty(shape), x


@forward.plan
@flat_arguments
def plan_forward(
    plan: Plan, z: Operand, mask: Operand | None, parameters: Parameters[Operand], *numbers: Any
) -> tuple[Operand, ...]:
    problem = Problem(z, mask, parameters, *numbers)
    shape = problem.matrices_shape()
    y, a, b = plan.empty_like(z), plan.empty(shape, z.dtype), plan.empty(shape, z.dtype)
    x = plan.empty(shape, problem.product_dtype)
    form_of(plan, problem, y).plan_forward(plan, problem, y, a, b, x)
    return y, a, b, x


@kernels("triangle_multiply_backward")
@flat_arguments
def backward(
    dy: Tensor, a: Tensor, b: Tensor, x: Tensor, z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor],
    outgoing: bool, eps: float, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dz and the gradients of the parameters, as `split_gradients` takes them."""
    return empty_gradients(z, parameters.output_weight)


def empty_gradients(z: Tensor, output_weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return memory for dz, and for the three tensors that `split_gradients` takes."""
    channels, hidden = output_weight.shape
    return (
        torch.empty_like(z), z.new_empty(4 * hidden + channels, channels), z.new_empty(channels, hidden),
        z.new_empty(6 * hidden + 4 * channels),
    )  # fmt: skip


@backward.plan
@flat_arguments
def plan_backward(
    plan: Plan, dy: Operand, a: Operand, b: Operand, x: Operand, z: Operand, mask: Operand | None,
    parameters: Parameters[Operand], *numbers: Any,
) -> tuple[Operand, ...]:  # fmt: skip
    problem = Problem(z, mask, parameters, *numbers)
    dz = plan.empty_like(z)
    return form_of(plan, problem, dy, dz).plan_backward(plan, problem, dy, a, b, x, dz)
