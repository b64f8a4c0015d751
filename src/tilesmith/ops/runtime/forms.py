"""Several kernels for one computation: a list of forms, asked in order.

A *form* is one kernel, or a few, with its launch configuration. `takes(problem)` says whether the kernels can compute a
problem, `suits(problem)` whether they are expected to be the fastest, and `plan(...)` puts the launches on a plan. An
operator lists its forms in order of preference and calls `first_form(FORMS, problem).plan(...)`. A new kernel is one
more entry in that list, before every form that is slower for the same problems.

A sweep or a tuning table may change a configuration. Where such a change decides which kernel can run, the operator
chooses the configuration first and makes it part of the problem. Its forms then have a method `default(problem)` too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from tilesmith.ops.runtime.config import ConfigType

ProblemType = TypeVar("ProblemType", contravariant=True)
PlannedType = TypeVar("PlannedType", covariant=True)
DefaultType = TypeVar("DefaultType", covariant=True)


class Form(Protocol[ProblemType, PlannedType]):
    """One way to compute a problem."""

    @abstractmethod
    def takes(self, problem: ProblemType, /) -> bool:
        """Return whether the kernels can compute the problem."""
        ...

    @abstractmethod
    def suits(self, problem: ProblemType, /) -> bool:
        """Return whether this form is the fastest of those that the list holds from here on."""
        ...

    @abstractmethod
    def plan(self, *arguments: Any, **named: Any) -> PlannedType:
        """Put the launches on a plan. The parameters and the result are the operator's own."""
        ...


class FormWithDefault(Form[ProblemType, PlannedType], Protocol[ProblemType, PlannedType, DefaultType]):
    """A form whose problem has a configuration."""

    @abstractmethod
    def default(self, problem: ProblemType, /) -> DefaultType | None:
        """Return the default configuration; None where a form that the list holds further on is faster."""
        ...


FormType = TypeVar("FormType", bound=Form[Any, Any])


def first_form(forms: Iterable[FormType], problem: object) -> FormType:
    """Return the first form that takes the problem and suits it. The last form of a list does so for every problem."""
    return next(form for form in forms if form.takes(problem) and form.suits(problem))


def first_default(forms: Iterable[FormWithDefault[Any, Any, ConfigType]], problem: object) -> ConfigType:
    """Return the default configuration of the first form that has one for the problem."""
    return next(config for form in forms if (config := form.default(problem)) is not None)
