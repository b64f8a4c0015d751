"""The fused triangle multiplicative update as torch operators, and the forms that may compute it.

The forward takes three kernels; only a, b and their product x pass through memory between them. FORWARD and BACKWARD
list the forms in order of preference (`ops/runtime/forms.py`). Each direction chooses its form separately, so all forms
use one layout of a, b and x. To add a form: write it beside its kernels, and put it before the portable one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.forms import Form, first_form
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.fused.backward import PortableBackward
from tilesmith.ops.triangle_multiply.fused.forward import PortableForward
from tilesmith.ops.triangle_multiply.hopper.backward import HopperBackward
from tilesmith.ops.triangle_multiply.hopper.forward import HopperForward
from tilesmith.ops.triangle_multiply.parameters import Parameters
from tilesmith.ops.triangle_multiply.problem import Gradients, Problem, Update, matrices_shape, product_dtype

FORWARD: list[Form[Update, None]] = [
    HopperForward(),  # Hopper, bf16, 128 channels
    PortableForward(),  # every problem, on every GPU and in the interpreter
]
BACKWARD: list[Form[Gradients, tuple[Operand, ...]]] = [HopperBackward(), PortableBackward()]


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
    update = Update(plan, problem, y, a, b, x)
    first_form(FORWARD, update).plan(update)
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
    task = Gradients(plan, problem, dy, a, b, x, plan.empty_like(z))
    return first_form(BACKWARD, task).plan(task)
