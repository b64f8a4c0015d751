"""The ordered lists of forms. The first form that takes and suits a task computes it.

To add a kernel, write its form beside it and list the form here, before every form that is slower for the same tasks.
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

FORWARD: list[Form[Problem]] = [DECODE, HOPPER_FORWARD, SHORT_FORWARD, PORTABLE_FORWARD]
BACKWARD: list[Form[Gradients]] = [SHORT_BACKWARD, CHUNKED_BACKWARD, HOPPER_BACKWARD, PORTABLE_BACKWARD]


def plan_forward(plan: Plan, problem: Problem) -> tuple[Operand, ...]:
    """Plan the forward. Returns the output, and log₂ Σ 2^score of each query."""
    return plan_first(FORWARD, plan, problem)


def plan_backward(
    plan: Plan, problem: Problem, doutput: Operand, output: Operand, lse: Operand, bias_gradient: bool = False
) -> tuple[Operand, ...]:
    """Plan the backward. Returns dq, dk and dv, and dbias if there is a bias and its gradient is wanted."""
    dq, dk, dv = plan.empty_like(problem.q), plan.empty_like(problem.k), plan.empty_like(problem.v)
    wants_dbias = bias_gradient and problem.bias is not None
    return plan_first(BACKWARD, plan, Gradients(problem, doutput, output, lse, wants_dbias, dq, dk, dv))
