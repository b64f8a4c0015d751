"""GeGLU: y = gelu(gate) · up, of two tensors or of the two halves of one: Gemma's and ModernBERT's gate.

Moves what `swiglu` moves, by the same kernels with another activation. Memory-bound on every GPU.
"""

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.gelu import ACTIVATIONS, require_approximate
from tilesmith.ops.gelu import native as native_gelu
from tilesmith.ops.gelu import reference as gelu_reference
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.swiglu.operator import (
    empty_gradients,
    empty_product,
    plan_gated,
    plan_gated_gradients,
    require_gate_and_up,
)
from tilesmith.ops.swiglu.operator import make_inputs as make_gate_and_up
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return gelu_reference(gate, approximate) * up


@kernels("geglu_forward")
def forward(gate: Tensor, up: Tensor | None, approximate: str) -> Tensor:
    """Return y in the layout of gate, or of its first half where gate holds both."""
    return empty_product(gate, up)


@forward.plan
def plan_forward(plan: Plan, gate: Operand, up: Operand | None, approximate: str) -> Operand:
    return plan_gated(plan, gate, up, ACTIVATIONS[approximate])


@kernels("geglu_backward")
def backward(dy: Tensor, gate: Tensor, up: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up; an empty tensor as the second where gate holds both."""
    return empty_gradients(gate, up)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, gate: Operand, up: Operand | None, approximate: str
) -> tuple[Operand, Operand]:
    return plan_gated_gradients(plan, dy, gate, up, None, ACTIVATIONS[approximate])


@kernels("geglu_backward_with_output")
def backward_with_output(dy: Tensor, gate: Tensor, up: Tensor, approximate: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gate and up, and geglu(gate, up)."""
    return torch.empty_like(gate), torch.empty_like(up), torch.empty_like(dy)


@backward_with_output.plan
def plan_backward_with_output(
    plan: Plan, dy: Operand, gate: Operand, up: Operand, approximate: str
) -> tuple[Operand, ...]:
    y = plan.empty_like(dy)
    return *plan_gated_gradients(plan, dy, gate, up, y, ACTIVATIONS[approximate]), y


def native(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return native_gelu(gate, approximate) * up


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, context.approximate = inputs
    context.save_for_backward(*tensors)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
    gate, up = context.saved_tensors
    dgate, dup = backward(dy, gate, up, context.approximate)
    return dgate, None if up is None else dup, None


@operator("geglu", reference=reference, native=native, forward=forward, save=save, gradient=gradient)
def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    """Return gelu(gate) · up, element by element, computed in single precision or better.

    Without up, gate holds both, as a fused projection computes them: the first half of its last dimension is the gate,
    the second half is up. Its gradient has the same layout. `approximate` is "none" or "tanh", as in
    torch.nn.functional.gelu. The result has the dtype of PyTorch's product.
    """
    require_approximate("geglu", approximate)
    return require_gate_and_up("geglu", gate, up)


def liger(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    if up is None or approximate != "tanh":
        raise NotImplementedError("Liger has GeGLU of two tensors, approximated by tanh")
    return LigerGELUMulFunction.apply(gate, up)  # type: ignore[no-any-return]  # untyped


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    approximate = "none" if case.name.startswith("exact") else "tanh"
    return {**make_gate_and_up(case, dtype, device, layout), "approximate": approximate}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * (case.halves if "halves" in case.sizes else case.cols)
    return Cost(
        forward=Work(bytes=3 * elements * dtype.itemsize, flops=9 * elements),
        backward=Work(bytes=5 * elements * dtype.itemsize, flops=17 * elements),
    )


SPEC = Spec(
    name="geglu",
    op=geglu,
    reference=reference,
    formula="y = gelu(gate) · up",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=7, cols=33),
        Case("exact-odd", rows=5, cols=61),
        Case("packed-odd", rows=5, halves=61),
        Case("past-a-block", rows=3, cols=4097),
        Case("exact-packed", rows=16384, halves=4608),
        Case("large", rows=16384, cols=9216),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native, "liger": liger},
)
