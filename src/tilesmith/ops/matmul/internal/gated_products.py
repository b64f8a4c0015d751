"""The products of a feed-forward block with a gate, and what is elementwise between them, in one kernel each way.

Forward: gate = x·Wgᵀ and up = x·Wuᵀ, and with them h = silu(gate)·up. Apart, a pass of its own reads gate and up again,
two elements for each that it writes. Backward: dh = dy·W, of which the gradients of gate and of up come, and h once
more, as it was not kept. Apart, dh is written and read for nothing else. On a GPU at its power limit, what is moved
costs time twice: its own, and that of slower products.

On Hopper the kernels are in `hopper_forward` and `hopper_backward`. Elsewhere, and in the interpreter, the same is
planned in parts; but who can multiply by the BLAS does better to ask `suits_forward` and `suits_backward` first.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.matmul.forward import plan_forward as plan_product
from tilesmith.ops.matmul.hopper.gated_backward import plan_hopper_backward
from tilesmith.ops.matmul.hopper.gated_forward import plan_hopper_forward
from tilesmith.ops.matmul.hopper.gated_tiles import suits_hopper
from tilesmith.ops.matmul.internal.suitability import known
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.swiglu import plan_backward_with_output
from tilesmith.ops.swiglu import plan_forward as plan_swiglu


def reference(x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
    return gate, up, F.silu(gate) * up


@kernels("gated_products_forward")
def forward(x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gate, up and silu(gate) · up, of a matrix x."""
    shape = x.shape[0], gate_weight.shape[0]
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape)


@forward.plan
def plan_forward(plan: Plan, x: Operand, gate_weight: Operand, up_weight: Operand) -> tuple[Operand, Operand, Operand]:
    if _forward_suits(plan, x, gate_weight, up_weight):
        return plan_hopper_forward(plan, x, gate_weight, up_weight)
    gate, up = (_planned_product(plan, x, weight.permuted((1, 0))) for weight in (gate_weight, up_weight))
    hidden = plan_swiglu(plan, gate, up)
    assert isinstance(hidden, Operand)  # a planner may give several
    return gate, up, hidden


@kernels("gated_products_backward")
def backward(dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of gate and of up where dy is that of silu(gate) · up · weightᵀ; and silu(gate) · up."""
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape), gate.new_empty(gate.shape)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, weight: Operand, gate: Operand, up: Operand
) -> Operand | tuple[Operand, ...]:
    if _backward_suits(plan, dy, weight, gate, up):
        return plan_hopper_backward(plan, dy, weight, gate, up)
    return plan_backward_with_output(plan, _planned_product(plan, dy, weight), gate, up)


def _planned_product(plan: Plan, a: Operand, b: Operand) -> Operand:
    y = plan_product(plan, a, b, None, "", None, None, a.dtype, False)
    assert isinstance(y, Operand)  # as above
    return y


_suited: dict[Hashable, bool] = {}


def suits_forward(x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> bool:
    """Whether `forward` is one kernel for these matrices."""
    return known(_suited, _forward_suits, x, gate_weight, up_weight)


def suits_backward(dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor) -> bool:
    """Whether `backward` is."""
    return known(_suited, _backward_suits, dy, weight, gate, up)


def _forward_suits(plan: Plan, x: Operand, gate_weight: Operand, up_weight: Operand) -> bool:
    return suits_hopper(plan, x, gate_weight.shape[0], 2, gate_weight, up_weight)


def _backward_suits(plan: Plan, dy: Operand, weight: Operand, gate: Operand, up: Operand) -> bool:
    return suits_hopper(plan, dy, weight.shape[1], 1, weight, gate, up)
