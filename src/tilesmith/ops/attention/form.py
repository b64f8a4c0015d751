"""What a form of attention is: one set of kernels, with the problems that it can compute and those that it suits.

`forms.py` lists all forms in the order in which the planner asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class Gradients:
    """One backward: the forward's problem, what the backward reads, and the gradients that it writes.

    `lse` is log₂ Σ 2^score of each query. `wants_dbias` is false without a bias.
    """

    problem: Problem
    doutput: Operand
    output: Operand
    lse: Operand
    wants_dbias: bool
    dq: Operand
    dk: Operand
    dv: Operand


Task = TypeVar("Task", Problem, Gradients)


@dataclass(frozen=True)
class Form(Generic[Task]):
    """One way to compute a task.

    - `takes`: whether the kernels can compute the task on the plan's GPU.
    - `suits`: whether they are faster for it than every form that follows.
    - `plan`: puts the launches on the plan. Returns (output, lse) of a forward. Returns (dq, dk, dv) of a backward, and
      dbias if the task wants it. Returns None, with nothing on the plan, if a tuned configuration turns the form off.
    """

    name: str
    takes: Callable[[Plan, Task], bool]
    suits: Callable[[Plan, Task], bool]
    plan: Callable[[Plan, Task], tuple[Operand, ...] | None]


def always(plan: Plan, task: object) -> bool:
    """Return True: for the form that computes every task."""
    return True


def plan_first(forms: Sequence[Form[Task]], plan: Plan, task: Task) -> tuple[Operand, ...]:
    """Plan the task with the first form that takes it and suits it."""
    for form in forms:
        if form.takes(plan, task) and form.suits(plan, task):
            planned = form.plan(plan, task)
            if planned is not None:
                return planned
    raise AssertionError("the last form takes every task")
