"""The answers to an exercise's questions: computed when asked, from a trace, a binary or arithmetic; never stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilesmith.lab.inspect.model import AccessFacts, ArgumentFacts, Kernel, TargetFacts
from tilesmith.workshop.cuda_check import CudaCheck
from tilesmith.workshop.cuda_figures import Figures
from tilesmith.workshop.exercise import Exercise, ExerciseError, Question
from tilesmith.workshop.stages import Check, module_of
from tilesmith.workshop.verdict import Answers

_IN_EXPRESSIONS = {
    **{name: getattr(math, name) for name in ("ceil", "floor", "log2", "sqrt")},
    **{function.__name__: function for function in (min, max, sum, range, round, abs)},
    "cdiv": lambda one, other: -(-one // other),
    "next_power_of_2": lambda number: 1 << max(0, math.ceil(number) - 1).bit_length(),
}


@dataclass(frozen=True)
class Facts:
    """What the functions of a `quiz.py` are given: the sizes, and what the kernels did on them. Of a CUDA program the
    sizes are what it did: launches, blocks, threads, barriers, copies; `cuda` knows its accesses."""

    sizes: Mapping[str, int]
    kernels: Sequence[Kernel]
    candidates: int = 0  # what an autotuner had to choose from
    cuda: Figures | None = None
    check: Check | None = None

    @cached_property
    def starter(self) -> Facts:
        """What the starter's kernels do; for exercises whose starter runs."""
        assert self.check is not None
        return _facts_on(None, Check(self.check.exercise, self.check.exercise.starter))

    def on(self, size: str) -> Facts:
        """What the kernels do on another of the exercise's sizes."""
        return _facts_on(size, self.check)

    @property
    def kernel(self) -> Kernel:
        """The first kernel that was launched."""
        return self.kernels[0]

    def argument(self, name: str) -> ArgumentFacts:
        """A tensor argument of the first kernel."""
        return next(one for one in self.kernel.arguments if one.name == name)

    def access(self, kind: str, argument: str) -> AccessFacts:
        """The first load or store of an argument."""
        return next(one for one in self.kernel.accesses if (one.kind, one.argument) == (kind, argument))

    def target(self, name: str = "cuda:90") -> TargetFacts:
        return self.kernel.targets[name]


def answers(exercise: Exercise, check: Check | CudaCheck | None) -> list[Answers]:
    """The answers to an exercise's questions, for the file that is checked, if there is one to write."""
    if not exercise.questions:
        return []
    facts = _facts(exercise, check)
    functions = module_of(exercise.folder / "quiz.py")
    return [_answers(question, functions, facts, exercise) for question in exercise.questions]


def _facts(exercise: Exercise, check: Check | CudaCheck | None) -> Facts:
    if isinstance(check, CudaCheck):
        figures = check.figures()
        return Facts(figures.counts, (), cuda=figures)
    return Facts(exercise.measured.sizes, ()) if check is None else _facts_on(None, check)


def _facts_on(name: str | None, check: Check | None) -> Facts:
    assert check is not None
    size = check.exercise.size(name)
    made = check.measured(size)
    if not made.kernels:
        raise ExerciseError(
            f"{check.exercise.id}: the quiz cannot be answered, as {check.file.name} launches no kernel"
        )
    return Facts(size.sizes, made.kernels, len(made.candidates), check=check)


def _answers(question: Question, functions: Any, facts: Facts, exercise: Exercise) -> Answers:
    def computed(name: str) -> float:
        try:
            return float(getattr(functions, name)(facts))
        except Exception as error:
            raise ExerciseError(f"{exercise.id}: {name} of quiz.py fails: {type(error).__name__}: {error}") from error

    return Answers(
        computed(question.answer),
        [computed(misstep.answer) for misstep in question.wrong],
        None if question.worked is None else _worked(question.worked, facts, exercise),
    )


def _worked(expression: str, facts: Facts, exercise: Exercise) -> float:
    constants = facts.kernel.constants if facts.kernels else {}
    known = {**_IN_EXPRESSIONS, **constants, **facts.sizes, "candidates": facts.candidates}
    try:
        return float(eval(expression, {"__builtins__": {}, **known}))
    except Exception as error:
        raise ExerciseError(f"{exercise.id}: {expression!r} fails: {type(error).__name__}: {error}") from error
