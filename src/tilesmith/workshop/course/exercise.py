"""What an exercise declares: its sizes, goals, sweep, hints and questions.

`docs/workshop-authors.md` documents every field; `exercise_file.py` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIFFICULTIES = ("easy", "medium", "hard")
USUAL_TARGET = "cuda:90"
STAGES = ("parses", "compiles", "runs", "right", "goals", "nvcc", "speed")


class ExerciseError(Exception):
    """An invalid exercise, or a machine that cannot check it. The message is one line."""


@dataclass(frozen=True)
class Size:
    """One input size: numbers by name, as the exercise's `make_inputs` reads them from a case.

    The learner sees `lesson` when a result of this size is wrong.
    """

    name: str
    sizes: Mapping[str, int]
    lesson: str = ""


NO_SIZE = Size("", {})


@dataclass(frozen=True)
class Goal:
    """A bound on one metric of `checking/goals.py`.

    The learner sees `why` when the goal is missed. `size` names the size to measure on; the default is the exercise's
    measured size.
    """

    metric: str
    why: str
    at_most: float | None = None
    at_least: float | None = None
    argument: str | None = None
    target: str = USUAL_TARGET
    size: str | None = None

    @property
    def name(self) -> str:
        """Return the metric, with the argument that the goal is about, and the target if it is not the usual one."""
        argument = f" of {self.argument}" if self.argument else ""
        return f"{self.metric}{argument}" + ("" if self.target == USUAL_TARGET else f" on {self.target}")

    @property
    def wanted(self) -> str:
        """Return the bounds as text, such as `≤ 1`."""
        bounds = {"≤": self.at_most, "≥": self.at_least}
        if self.at_most == self.at_least:
            return f"= {self.at_most:g}"
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)

    def met_by(self, value: float) -> bool:
        """Return whether a value lies within the bounds."""
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)


@dataclass(frozen=True)
class Sweep:
    """A table for the learner's page: one row per value of a constant of the learner's file, one metric per column."""

    constant: str
    values: tuple[int, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class CommonMistake:
    """A wrong answer that many learners give. `answer` names the function of `quiz.py` that computes it."""

    answer: str
    reply: str


@dataclass(frozen=True)
class Question:
    """A number to predict.

    `answer` names the function of `quiz.py` that computes the number. `worked` is an expression with the same value.
    """

    question: str
    answer: str
    reply: str
    worked: str | None = None
    between: tuple[float, float] | None = None
    within: float = 0.0  # the tolerance of a guess, relative to the answer
    wrong: tuple[CommonMistake, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """One exercise, of one of four kinds.

    - Triton: `function` names the learner's function, which is the operator of the exercise's spec.
    - CUDA (`is_cuda`): a `.cu` file and a harness. `twin` is the Triton exercise to time beside it, if any.
    - Program (`is_program`): a Python program around kernels. `function` is what the exercise's `checks.py` calls.
    - Questions only: no file to write.
    """

    folder: Path
    id: str
    title: str
    track: str
    needs: tuple[str, ...]
    starter_fails: str
    minutes: int = 0  # the author's estimate; 0: none
    difficulty: int = 0  # 1 easy, 2 medium, 3 hard; 0: not given
    is_cuda: bool = False
    is_program: bool = False
    twin: str | None = None
    function: str = ""
    visible: tuple[Size, ...] = ()
    hidden: tuple[Size, ...] = ()
    measured: Size = NO_SIZE
    timed: tuple[Size, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    layouts: tuple[str, ...] = ("contiguous",)
    differentiable: bool = False
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    sweep: Sweep | None = None
    hints: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()

    def size(self, name: str | None) -> Size:
        """Return the size of this name; without a name, the measured size."""
        return next((one for one in (*self.visible, *self.hidden) if one.name == name), self.measured)

    @property
    def effort(self) -> str:
        """Return time, difficulty and needs in words, such as "about 15 minutes, easy, after masks"."""
        parts = [f"about {self.minutes} minutes"] if self.minutes else []
        parts += [DIFFICULTIES[self.difficulty - 1]] if self.difficulty else []
        parts += [f"after {', '.join(self.needs)}"] if self.needs else []
        return ", ".join(parts)

    @property
    def has_kernels(self) -> bool:
        """Return whether the learner's file defines Triton kernels with a spec, which can be traced and drawn."""
        return bool(self.function) and not self.is_program

    @property
    def is_only_questions(self) -> bool:
        return not self.function and not self.is_cuda

    def stages_until(self, last: str) -> list[str]:
        """Return the stages up to and including `last`. Only CUDA has "nvcc", and a program compiles nothing."""
        absent = ("compiles", "nvcc") if self.is_program else () if self.is_cuda else ("nvcc",)
        return [stage for stage in STAGES[: STAGES.index(last) + 1] if stage not in absent]

    @property
    def suffix(self) -> str:
        """Return the suffix of the exercise's programs."""
        return ".cu" if self.is_cuda else ".py"

    @property
    def file_name(self) -> str:
        """Return the name of the learner's file. The name contains the id, because messages quote the name."""
        return f"{self.id.replace('-', '_')}{self.suffix}"

    @property
    def starter(self) -> Path:
        return self.folder / f"starter{self.suffix}"

    @property
    def solution(self) -> Path:
        return self.folder / f"solution{self.suffix}"

    @property
    def page(self) -> Path:
        return self.folder / "page.md"
