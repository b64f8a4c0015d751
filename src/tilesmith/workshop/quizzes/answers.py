"""The answers to an exercise's questions, computed from a trace, a binary or arithmetic. No answer is stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilesmith.lab.inspect.model import AccessFacts, ArgumentFacts, Kernel, TargetFacts
from tilesmith.workshop.checking.loading import load_module
from tilesmith.workshop.checking.program_check import ProgramCheck
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.checking.verdict import QuestionAnswers
from tilesmith.workshop.course.exercise import Exercise, ExerciseError, Question
from tilesmith.workshop.cuda.access_counts import ProgramCounts
from tilesmith.workshop.cuda.check import CudaCheck

_EXPRESSION_NAMES = {
    **{name: getattr(math, name) for name in ("ceil", "floor", "log2", "sqrt")},
    **{function.__name__: function for function in (min, max, sum, range, round, abs)},
    "cdiv": lambda one, other: -(-one // other),
    "next_power_of_2": lambda number: 1 << max(0, math.ceil(number) - 1).bit_length(),
}


@dataclass(frozen=True)
class Facts:
    """The argument of every function in a `quiz.py`: the sizes, and the traced kernels.

    For a CUDA program, `sizes` holds its counts (launches, blocks, threads, barriers, copies) and `cuda` its accesses.
    For a Python program, `sizes` holds the numbers of its `measure`.
    """

    sizes: Mapping[str, float]
    kernels: Sequence[Kernel]
    candidates: int = 0  # the number of an autotuner's configurations
    cuda: ProgramCounts | None = None
    check: TritonCheck | None = None

    @cached_property
    def starter(self) -> Facts:
        """Return the facts of the starter's kernels, for exercises whose starter runs."""
        assert self.check is not None
        return _facts_on(None, TritonCheck(self.check.exercise, self.check.exercise.starter))

    def on(self, size: str) -> Facts:
        """Return the facts on another size of the exercise."""
        return _facts_on(size, self.check)

    @property
    def kernel(self) -> Kernel:
        """Return the first kernel that was launched."""
        return self.kernels[0]

    def argument(self, name: str) -> ArgumentFacts:
        """Return a tensor argument of the first kernel."""
        return next(one for one in self.kernel.arguments if one.name == name)

    def access(self, kind: str, argument: str) -> AccessFacts:
        """Return the first load or store of an argument."""
        return next(one for one in self.kernel.accesses if (one.kind, one.argument) == (kind, argument))

    def target(self, name: str = "cuda:90") -> TargetFacts:
        return self.kernel.targets[name]


def compute_answers(exercise: Exercise, check: TritonCheck | CudaCheck | ProgramCheck | None) -> list[QuestionAnswers]:
    """Return the answers to an exercise's questions. `check` is None for an exercise of questions only."""
    if not exercise.questions:
        return []
    facts = _facts(exercise, check)
    functions = load_module(exercise.folder / "quiz.py")
    return [_answers(question, functions, facts, exercise) for question in exercise.questions]


def _facts(exercise: Exercise, check: TritonCheck | CudaCheck | ProgramCheck | None) -> Facts:
    if isinstance(check, CudaCheck):
        program = check.counts()
        return Facts(program.counts, (), cuda=program)
    if isinstance(check, ProgramCheck):
        return Facts(check.numbers(), ())
    return Facts(exercise.measured.sizes, ()) if check is None else _facts_on(None, check)


def _facts_on(name: str | None, check: TritonCheck | None) -> Facts:
    assert check is not None
    size = check.exercise.size(name)
    call = check.measured(size)
    if not call.kernels:
        raise ExerciseError(
            f"{check.exercise.id}: the quiz has no answers, because {check.file.name} launches no kernel"
        )
    return Facts(size.sizes, call.kernels, len(call.candidates), check=check)


def _answers(question: Question, functions: Any, facts: Facts, exercise: Exercise) -> QuestionAnswers:
    def computed(name: str) -> float:
        try:
            return float(getattr(functions, name)(facts))
        except Exception as error:
            raise ExerciseError(f"{exercise.id}: {name} of quiz.py fails: {type(error).__name__}: {error}") from error

    return QuestionAnswers(
        computed(question.answer),
        [computed(mistake.answer) for mistake in question.wrong],
        None if question.worked is None else _worked(question.worked, facts, exercise),
    )


def _worked(expression: str, facts: Facts, exercise: Exercise) -> float:
    constants = facts.kernel.constants if facts.kernels else {}
    known = {**_EXPRESSION_NAMES, **constants, **facts.sizes, "candidates": facts.candidates}
    try:
        return float(eval(expression, {"__builtins__": {}, **known}))
    except Exception as error:
        raise ExerciseError(f"{exercise.id}: {expression!r} fails: {type(error).__name__}: {error}") from error
