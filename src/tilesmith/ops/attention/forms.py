"""The forms of attention, in order of preference: one list for each direction.

A form is one kernel, or a few, with its launch configuration (`ops/runtime/forms.py`). The first form that can compute
a problem (`takes`) and is expected to be the fastest (`suits`) computes it. To add a kernel: write its form in the
kernel's module, and list it here before every form that is slower for the same problems.
"""

from __future__ import annotations

from tilesmith.ops.attention.hopper.backward_plan import HopperBackward
from tilesmith.ops.attention.hopper.forward_plan import HopperForward
from tilesmith.ops.attention.kernels.backward import PortableBackward
from tilesmith.ops.attention.kernels.backward_by_chunks import ChunkedBackward
from tilesmith.ops.attention.kernels.decode import Decode
from tilesmith.ops.attention.kernels.decode_backward import DecodeBackward
from tilesmith.ops.attention.kernels.forward import PortableForward
from tilesmith.ops.attention.kernels.short import ShortBackward, ShortForward
from tilesmith.ops.attention.kernels.wide_heads import WideHeadsBackward, WideHeadsForward
from tilesmith.ops.attention.problem import Gradients, Problem
from tilesmith.ops.runtime.forms import Form, first_form
from tilesmith.ops.runtime.plan import Operand

FORWARD: list[Form[Problem, tuple[Operand, ...]]] = [
    Decode(),  # few queries, many keys: the keys are split over programs
    ShortForward(),  # up to 64 queries and keys
    HopperForward(),  # Hopper, half precision
    WideHeadsForward(),  # TMA, half precision, heads of more than 128 elements
    PortableForward(),  # every problem, on every GPU and in the interpreter
]
BACKWARD: list[Form[Gradients, tuple[Operand, ...]]] = [
    DecodeBackward(),  # few queries, many keys: the keys are split over programs
    ShortBackward(),  # up to 64 queries and keys
    ChunkedBackward(),  # sequences that share a bias with a gradient, some sequences at a time
    HopperBackward(),  # Hopper, half precision, heads of 33 to 128 elements, more than 32 tokens
    WideHeadsBackward(),  # TMA, half precision, heads of more than 128 elements
    PortableBackward(),  # every problem, on every GPU and in the interpreter
]


def plan_forward(problem: Problem) -> tuple[Operand, ...]:
    """Put the forward on the plan. Return the output, and the base-2 log-sum-exp of each query, log₂ Σ 2^score."""
    return first_form(FORWARD, problem).plan(problem)


def plan_backward(
    problem: Problem, doutput: Operand, output: Operand, lse: Operand, bias_gradient: bool = False
) -> tuple[Operand, ...]:
    """Put the backward on the plan. Return dq, dk and dv; and dbias where there is a bias and `bias_gradient`."""
    dq, dk, dv = (problem.plan.empty_like(one) for one in (problem.q, problem.k, problem.v))
    wants_dbias = bias_gradient and problem.bias is not None
    task = Gradients(problem, doutput, output, lse, wants_dbias, dq, dk, dv)
    return first_form(BACKWARD, task).plan(task)
