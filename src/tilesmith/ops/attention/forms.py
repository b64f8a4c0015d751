"""The forms of attention, in order of preference: one list for each direction.

A form is one kernel, or a few, with its launch configuration (`form.py`). The first form that can compute a problem
(`takes`) and is expected to be the fastest (`suits`) computes it. To add a kernel: write its `Form` in the kernel's
module, and list it here before every form that is slower for the same problems.
"""

from __future__ import annotations

from tilesmith.ops.attention.form import Form, Gradients, plan_first
from tilesmith.ops.attention.hopper.backward_plan import HOPPER_BACKWARD
from tilesmith.ops.attention.hopper.forward_plan import HOPPER_FORWARD
from tilesmith.ops.attention.kernels.backward import PORTABLE_BACKWARD
from tilesmith.ops.attention.kernels.backward_by_chunks import CHUNKED_BACKWARD
from tilesmith.ops.attention.kernels.decode import DECODE
from tilesmith.ops.attention.kernels.forward import PORTABLE_FORWARD
from tilesmith.ops.attention.kernels.short import SHORT_BACKWARD, SHORT_FORWARD
from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.runtime.plan import Operand, Plan

FORWARD: list[Form[Problem]] = [
    DECODE,  # few queries, many keys: the keys are split over programs
    HOPPER_FORWARD,  # Hopper, half precision, long sequences
    SHORT_FORWARD,  # up to 64 queries and keys
    PORTABLE_FORWARD,  # everything else
]
BACKWARD: list[Form[Gradients]] = [
    SHORT_BACKWARD,  # up to 64 queries and keys
    CHUNKED_BACKWARD,  # sequences that share a bias with a gradient, some sequences at a time
    HOPPER_BACKWARD,  # Hopper, half precision, long sequences
    PORTABLE_BACKWARD,  # everything else
]


def plan_forward(plan: Plan, problem: Problem) -> tuple[Operand, ...]:
    """Put the forward on the plan. Return the output, and the base-2 log-sum-exp of each query, log₂ Σ 2^score."""
    return plan_first(FORWARD, plan, problem)


def plan_backward(
    plan: Plan, problem: Problem, doutput: Operand, output: Operand, lse: Operand, bias_gradient: bool = False
) -> tuple[Operand, ...]:
    """Put the backward on the plan. Return dq, dk and dv; and dbias where there is a bias and `bias_gradient`."""
    dq, dk, dv = plan.empty_like(problem.q), plan.empty_like(problem.k), plan.empty_like(problem.v)
    wants_dbias = bias_gradient and problem.bias is not None
    return plan_first(BACKWARD, plan, Gradients(problem, doutput, output, lse, wants_dbias, dq, dk, dv))
