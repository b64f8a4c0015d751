"""All stages of a check for a Python program around kernels: a benchmark, a profile, a tuner, a training step.

The exercise's `checks.py` decides what is right. Its functions `check_…` run in their order, each with the learner's
module, and raise `Wrong` with a message for the learner. Its function `measure`, if there is one, returns the numbers
that goals and questions are about.

The same checks run twice: in the process of the learner's file, where their messages name its lines, and outside of it
(`isolation/outside_verdict.py`), where the file cannot reach them. `INSIDE_ONLY` of `checks.py` names the functions
that need to be in the program's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.lab.check.context import poisoned_memory
from tilesmith.lab.judge.conversing.lent import look_up_late
from tilesmith.toolchain.interpreter import Observer, interpreting
from tilesmith.workshop.checking import failure_messages
from tilesmith.workshop.checking.goals import Measured
from tilesmith.workshop.checking.loading import load_module
from tilesmith.workshop.checking.staged_check import StagedCheck, StageFailure
from tilesmith.workshop.checking.unfinished_code import first_problem
from tilesmith.workshop.course.exercise import Exercise, ExerciseError, Goal

if TYPE_CHECKING:
    from tilesmith.toolchain.interpreter import Program, Undefined


class Wrong(Exception):
    """What a check of `checks.py` found. The message is for the learner."""


class _Runs(Observer):
    """Counts launches, and remembers the first undefined value that a kernel stores."""

    found: Undefined | None = None
    launches = 0

    def launch(self, kernel: Any, grid: tuple[int, int, int], arguments: Mapping[str, Any]) -> None:
        self.launches += 1

    def undefined(self, undefined: Undefined, lanes: NDArray[np.bool_], program: Program) -> None:
        self.found = self.found or undefined


@contextmanager
def kernels_run(needed: bool = False) -> Iterator[None]:
    """Interpret the kernels of the learner's program, in memory that is NaN until it is written.

    Raises Wrong if a kernel stores what nobody defined, and if a kernel is `needed` and none runs. Only checks in the
    program's own process (INSIDE_ONLY) see launches.
    """
    observer = _Runs()
    with poisoned_memory(), interpreting(observer):
        yield
    if needed and not observer.launches:
        raise Wrong("no kernel runs: PyTorch computes what the kernel of this file should compute. Launch the kernel.")
    if observer.found is not None:
        origin = observer.found.origin
        raise Wrong(
            f"line {origin.line}: lanes that the mask switches off have no value, but reach a result. "
            "Give the load a value for them: other=0.0."
        )


class ProgramCheck(StagedCheck):
    """A check of one Python program."""

    def __init__(
        self, exercise: Exercise, file: Path, entering: Callable[[str], None] = lambda stage: None,
        program: Any = None,
    ) -> None:  # fmt: skip
        """`program` stands for the module of the file where that is in another process."""
        super().__init__(exercise, file, entering)
        self._checks = load_module(exercise.folder / "checks.py")
        self._program: Any = program
        self._left_out = frozenset() if program is None else frozenset(getattr(self._checks, "INSIDE_ONLY", ()))
        self._numbers: Mapping[str, float] | None = None

    def numbers(self) -> Mapping[str, float]:
        """Return what `measure` of checks.py returns for the learner's program; empty where there is no `measure`."""
        if self._numbers is None:
            measure = getattr(self._checks, "measure", None)
            self._numbers = {} if measure is None else self._called(measure)
        return self._numbers

    def _pass_stages(self) -> tuple[str, list[str]]:
        self._require_parses()
        self._entering("runs")
        self._imported()
        self._entering("right")
        for name, check in list(vars(self._checks).items()):
            if name.startswith("check_") and name not in self._left_out:
                self._called(check)
        if self.exercise.goals and "measure" not in self._left_out:
            self._entering("goals")
            self._require_goals(self._measured, lambda goal: "")
        return "goals", []

    def _require_parses(self) -> None:
        self._entering("parses")
        problem = first_problem(self.file, self.exercise.function)
        if problem is not None:
            raise StageFailure("parses", problem)

    def _imported(self) -> Any:
        if self._program is None:
            try:
                self._program = load_module(self.file)
                look_up_late(self._program)
            except BaseException as error:
                raise StageFailure("runs", failure_messages.exception_while_importing(error, self.file)) from error
        return self._program

    def _called(self, function: Callable[[ModuleType], Any]) -> Any:
        """Call a function of checks.py with the learner's module. What the module raises fails at "runs"."""
        program = self._imported()
        try:
            return function(program)
        except Wrong as found:
            raise StageFailure("right", str(found)) from found
        except ExerciseError:
            raise
        except BaseException as error:
            raise StageFailure("runs", failure_messages.exception_while_running(error, self.file)) from error

    def _measured(self, goal: Goal) -> Measured:
        if goal.metric not in self.numbers():
            known = ", ".join(sorted(self.numbers()))
            raise ExerciseError(f"{self.exercise.id}: there is no number {goal.metric!r}; measure returns {known}")
        return Measured(self.numbers()[goal.metric])
