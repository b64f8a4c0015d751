"""Several kernels for one computation: a list of forms, of which a planner asks each in order.

A form says which problems it is the fastest for (`suits`), with which configuration (`config`), which problems and
configurations its kernels can compute at all (`takes`), and what it launches (`plan`). A new form is one more entry in
its operator's list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from tilesmith.ops.runtime.config import ConfigType
from tilesmith.ops.runtime.plan import Plan

ProblemType = TypeVar("ProblemType", bound="Problem", contravariant=True)


class Problem(Protocol):
    """What an operator computes, as far as its forms depend on it."""

    def bucket(self, default: Any) -> tuple[object, ...]:
        """Return the sizes that tuned configurations are stored under; `default` is what the form chose."""
        ...


class Form(Protocol[ProblemType, ConfigType]):
    """One way to compute a problem."""

    def suits(self, problem: ProblemType) -> bool:
        """Return whether this form is the fastest of those that the list holds from here on."""
        ...

    def config(self, problem: ProblemType) -> ConfigType:
        """Return the default configuration."""
        ...

    def takes(self, problem: ProblemType, config: ConfigType) -> bool:
        """Return whether the kernels can compute the problem with a configuration, which a sweep may have changed."""
        ...

    def plan(self, plan: Plan, problem: ProblemType, config: ConfigType) -> Any:
        """Put the launches on the plan."""
        ...


def plan_by_form(plan: Plan, forms: Sequence[Form[ProblemType, ConfigType]], problem: ProblemType) -> Any:
    """Plan the problem: the first form that suits gives the configuration, the first that takes it the launches."""
    default = next(form for form in forms if form.suits(problem)).config(problem)
    config = plan.choose(default, *problem.bucket(default))
    return next(form for form in forms if form.takes(problem, config)).plan(plan, problem, config)
