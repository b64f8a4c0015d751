"""The GEMMs of a gated feed-forward block with SwiGLU in their epilogues: one kernel forward, one backward.

Forward: gate = x·Wgᵀ, up = x·Wuᵀ and hidden = act(gate)·up. A separate SwiGLU pass would read gate and up again, two
elements for each that it writes. Backward: dhidden = dy·W gives the gradients of gate and of up. The kernel also writes
hidden again, which the forward did not keep. A separate GEMM would write dhidden only for one pass to read it. At a
GPU's power limit, moved bytes cost time twice: their own, and that of slower GEMMs.

The Hopper kernels are in `matmul/hopper/gated_forward.py` and `gated_backward.py`. Other GPUs and the interpreter plan
GEMMs and SwiGLU one after the other. GeGLU has the forward's kernel only, with GELU by tanh: the slope of GELU in the
backward's epilogue spills 208 bytes per thread. Callers that can use the BLAS ask
`suits_forward` and `suits_backward` first.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.matmul.forward import plan_forward as plan_product
from tilesmith.ops.matmul.hopper.gated_backward import plan_hopper_backward
from tilesmith.ops.matmul.hopper.gated_forward import plan_hopper_forward
from tilesmith.ops.matmul.hopper.gated_tiles import suits_hopper
from tilesmith.ops.matmul.internal.suitability import RememberedSuitability
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.swiglu.operator import plan_gated, plan_gated_gradients

FORWARD = ("silu", "gelu_tanh")
BACKWARD = ("silu",)
"""The activations that the Hopper kernels have."""


def reference(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor, activation: str = "silu"
) -> tuple[Tensor, Tensor, Tensor]:
    gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
    if activation == "silu":
        return gate, up, F.silu(gate) * up
    return gate, up, F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


@kernels("gated_products_forward")
def forward(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor, activation: str = "silu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gate, up and activation(gate) · up of a matrix x; the activation is "silu", "gelu" or "gelu_tanh"."""
    shape = x.shape[0], gate_weight.shape[0]
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape)


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, gate_weight: Operand, up_weight: Operand, activation: str = "silu"
) -> tuple[Operand, Operand, Operand]:
    if activation in FORWARD and _forward_suits(plan, x, gate_weight, up_weight):
        return plan_hopper_forward(plan, x, gate_weight, up_weight, activation)
    gate, up = (_planned_product(plan, x, weight.permuted((1, 0))) for weight in (gate_weight, up_weight))
    return gate, up, plan_gated(plan, gate, up, activation)


@kernels("gated_products_backward")
def backward(
    dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor, activation: str = "silu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gate and of up, and hidden = activation(gate) · up; dy is that of hidden · weightᵀ."""
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape), gate.new_empty(gate.shape)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, weight: Operand, gate: Operand, up: Operand, activation: str = "silu"
) -> tuple[Operand, ...]:
    if activation in BACKWARD and _backward_suits(plan, dy, weight, gate, up):
        return plan_hopper_backward(plan, dy, weight, gate, up)
    dhidden = _planned_product(plan, dy, weight)
    hidden = plan.empty_like(dhidden)
    return *plan_gated_gradients(plan, dhidden, gate, up, hidden, activation), hidden


def _planned_product(plan: Plan, a: Operand, b: Operand) -> Operand:
    y = plan_product(plan, a, b, None, "", None, None, a.dtype, False)
    assert isinstance(y, Operand)  # the type of a planner also allows several
    return y


def _forward_suits(plan: Plan, x: Operand, gate_weight: Operand, up_weight: Operand) -> bool:
    return suits_hopper(plan, x, gate_weight.shape[0], 2, gate_weight, up_weight)


def _backward_suits(plan: Plan, dy: Operand, weight: Operand, gate: Operand, up: Operand) -> bool:
    return suits_hopper(plan, dy, weight.shape[1], 1, weight, gate, up)


suits_forward = RememberedSuitability(_forward_suits)
"""Whether `forward` is one kernel for x, gate_weight and up_weight."""

suits_backward = RememberedSuitability(_backward_suits)
"""Whether `backward` is one kernel for dy, weight, gate and up."""
