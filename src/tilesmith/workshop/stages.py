"""The stages of a check, in the process that runs the learner's file. The first that fails ends it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.check import Trial
from tilesmith.lab.check import run as compared
from tilesmith.lab.comparison import compare
from tilesmith.spec import CONTIGUOUS, LAYOUTS, Case, Inputs, Spec, called
from tilesmith.toolchain.compiler import DEFAULT_TARGETS
from tilesmith.toolchain.interpreter import interpreting
from tilesmith.workshop import messages
from tilesmith.workshop.attempt import Attempt, attempt
from tilesmith.workshop.exercise import Exercise, ExerciseError, Goal, Size
from tilesmith.workshop.gaps import problem_of
from tilesmith.workshop.goals import Measured, measure
from tilesmith.workshop.sweep import filled
from tilesmith.workshop.verdict import Reached, Table, Verdict


class Failure(Exception):
    """A stage that was not passed; the message is for the learner."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class Check:
    """A check of one file. `entering` is told each stage as it begins, so that others know where it ended."""

    def __init__(self, exercise: Exercise, file: Path, entering: Callable[[str], None] = lambda stage: None) -> None:
        self.exercise = exercise
        self.file = file
        self._entering = entering
        self._spec: Spec | None = None
        self._attempts: dict[Any, Attempt] = {}
        self._goals: list[Reached] = []
        self._table: Table = []

    def verdict(self) -> Verdict:
        try:
            self._parses()
            trials = [*self._trials(self.exercise.visible), *self._trials(self.exercise.hidden)]
            self._entering("compiles")
            self._compiles(trials[0])
            self._entering("runs")
            for trial in trials:
                self._runs(trial)
            self._runs_with_every_candidate(trials[0])
            self._entering("right")
            for trial in trials:
                self._right(trial)
            self._not_cached(trials[0])
            self._entering("goals")
            if self.exercise.sweep is not None:
                self._table = filled(self, self.exercise.sweep, next(iter(self.exercise.timed), None))
            self._reaches_goals()
            speed = self._speed() if self.exercise.timed and torch.cuda.is_available() else []
        except Failure as failure:
            return Verdict(self.exercise.id, False, failure.stage, str(failure), self._goals, table=self._table)
        return Verdict(self.exercise.id, True, "speed" if speed else "goals", "", self._goals, speed, self._table)

    def measured(self, size: Size | None = None, candidate: int | None = None, *, anew: bool = False) -> Attempt:
        """A call that goals and questions are about: by default on the measured size, as a tuner's first choice, and
        the one that was made before, if there was one."""
        spec = self.spec
        trial = Trial(spec, _case(size or self.exercise.measured), spec.dtypes[0], CONTIGUOUS, "cpu")
        return self._made(trial, candidate) if anew else self._attempt(trial, candidate)

    @property
    def spec(self) -> Spec:
        """The exercise's meaning, with the learner's function as operator."""
        if self._spec is None:
            self._spec = _spec(self.exercise, self._function())
        return self._spec

    def _parses(self) -> None:
        self._entering("parses")
        source = self.file.read_text(encoding="utf-8", errors="replace")
        problem = problem_of(source, self.file.name, self.exercise.function)
        if problem is not None:
            raise Failure("parses", problem)

    def _function(self) -> Callable[..., Any]:
        try:
            function = getattr(module_of(self.file), self.exercise.function)
        except BaseException as error:
            raise Failure("runs", messages.exception_while_importing(error, self.file)) from error
        if not callable(function):
            raise Failure("runs", f"{self.exercise.function} is {function!r}, which cannot be called.")
        return function  # type: ignore[no-any-return]  # getattr gives Any

    def _trials(self, sizes: Sequence[Size]) -> Iterator[Trial]:
        """The visible sizes as everyone would try them; the hidden ones in every dtype and layout."""
        spec = self.spec
        plain = sizes is self.exercise.visible
        for size in sizes:
            for dtype in spec.dtypes[:1] if plain else spec.dtypes:
                for layout in spec.layouts[:1] if plain else spec.layouts:
                    yield Trial(spec, _case(size), dtype, layout, "cpu")

    def _attempt(self, trial: Trial, candidate: int | None = None) -> Attempt:
        key = (trial.case.name, trial.dtype, trial.layout.name, candidate)
        if key not in self._attempts:
            self._attempts[key] = self._made(trial, candidate)
        return self._attempts[key]

    def _made(self, trial: Trial, candidate: int | None) -> Attempt:
        exercise = self.exercise
        # Compiling takes most of the time, and what compiles for AMD on the other sizes does so on hidden ones.
        hidden = trial.case.name in {size.name for size in exercise.hidden if size is not exercise.measured}
        targets = DEFAULT_TARGETS[:1] if hidden or candidate is not None else DEFAULT_TARGETS
        inputs = _seeded_inputs(trial, seed=0)
        return attempt(trial.spec.op, inputs, self.file, exercise.allow, exercise.forbid, targets, candidate)

    def _compiles(self, trial: Trial) -> None:
        reason = messages.not_compiled(self._attempt(trial), self.file)
        if reason is not None:
            raise Failure("compiles", reason)

    def _runs(self, trial: Trial) -> None:
        self._compiles(trial)
        reason = messages.not_run(self._attempt(trial), self.file)
        if reason is not None:
            raise Failure("runs", self._on(trial, reason))

    def _runs_with_every_candidate(self, trial: Trial) -> None:
        """Which configuration an autotuner takes is decided on another machine: all of them must do."""
        for number, candidate in self._other_candidates(self._attempt(trial)):
            reason = messages.not_run(self._attempt(trial, number), self.file)
            if reason is not None:
                raise Failure("runs", self._on(trial, f"{reason}\n{messages.with_candidate(candidate)}"))

    @staticmethod
    def _other_candidates(made: Attempt) -> Iterator[tuple[int, Any]]:
        return ((number, one) for number, one in enumerate(made.candidates) if number > 0)

    def _right(self, trial: Trial) -> None:
        for result in compared(trial):
            if not result.passed:
                raise Failure("right", self._on(trial, messages.wrong_result(result.message, self.file)))

    def _not_cached(self, trial: Trial) -> None:
        """The same size with other numbers must give other memory and the right answer."""
        first, second = (_seeded_inputs(trial, seed) for seed in (0, 1))
        with interpreting():
            before = _tensors(called(trial.spec.op, first))
            after = _tensors(called(trial.spec.op, second))
        if {one.data_ptr() for one in before} & {one.data_ptr() for one in after if one.numel()}:
            raise Failure("right", messages.cached(shared=True))
        exact = _tensors(called(trial.spec.reference, {name: _double(value) for name, value in second.items()}))
        plain = _tensors(called(trial.spec.reference, second))
        if not all(compare(*three).passed for three in zip(after, exact, plain, strict=True)):
            raise Failure("right", messages.cached(shared=False))

    def _reaches_goals(self) -> None:
        missed = None
        for goal in self.exercise.goals:
            size = self.exercise.size(goal.size)
            try:
                found = self._furthest_from(goal, size)
            except LookupError as error:
                raise Failure("goals", f"{goal.name} cannot be told: {error.args[0]}.") from error
            met = goal.met_by(found.value)
            self._goals.append(Reached(goal.name, found.value, goal.wanted, met))
            if not met and missed is None:
                missed = messages.missed_goal(goal, found, _sizes(size.sizes))
        if missed is not None:
            raise Failure("goals", missed)

    def _furthest_from(self, goal: Goal, size: Size) -> Measured:
        """What a goal comes to; of an autotuner's configurations the first that misses it."""
        made = self.measured(size)
        found = measure(goal, made)
        for number, candidate in self._other_candidates(made):
            if not goal.met_by(found.value):
                break
            other = measure(goal, self.measured(size, number))
            where = ", ".join(filter(None, [other.where, messages.with_candidate(candidate)]))
            found = found if goal.met_by(other.value) else replace(other, where=where)
        return found

    def _speed(self) -> list[str]:
        from tilesmith.workshop.speed import timed_on_gpu

        self._entering("speed")
        lines: list[str] = []
        for size in self.exercise.timed:
            speed = timed_on_gpu(self.spec, _case(size))
            if speed.error is not None:
                raise Failure("speed", f"It passes without a GPU, but not on this one: {speed.error}")
            lines += speed.lines
        return lines

    def _on(self, trial: Trial, reason: str) -> str:
        """A reason with what was tried: that it goes wrong on one size only is half of the explanation."""
        dtype = str(trial.dtype).removeprefix("torch.")
        shown = trial.case.name in {size.name for size in self.exercise.visible}
        extra = "" if shown else f", {dtype}, {trial.layout.name}: one of the cases that the page does not list"
        return f"{reason}\n(tried with {_sizes(trial.case.sizes)}{extra})"


def _spec(exercise: Exercise, function: Callable[..., Any]) -> Spec:
    meaning = module_of(exercise.folder / "meaning.py")
    layouts = {layout.name: layout for layout in LAYOUTS}
    unknown = [name for name in exercise.layouts if name not in layouts]
    if unknown:
        raise ExerciseError(f"{exercise.id}: no layout is called {unknown[0]!r}; there are {', '.join(layouts)}")
    return Spec(
        name=exercise.id,
        op=function,
        reference=meaning.reference,
        make_inputs=meaning.make_inputs,
        cases=[_case(size) for size in (*exercise.visible, *exercise.hidden)],
        dtypes=[getattr(torch, name) for name in exercise.dtypes],
        layouts=[layouts[name] for name in exercise.layouts],
        differentiable=exercise.differentiable,
        cost=getattr(meaning, "cost", None),
    )


def model_spec(exercise: Exercise) -> Spec:
    """The exercise's meaning, with its model solution as operator."""
    return _spec(exercise, getattr(module_of(exercise.solution), exercise.function))


def module_of(path: Path) -> ModuleType:
    """A file as a module of its own, whatever others are called."""
    name = f"tilesmith_workshop_{path.stem}_{abs(hash(path)):x}"
    source = importlib.util.spec_from_file_location(name, path)
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    sys.modules[name] = module  # Triton looks a kernel's source up through its module
    source.loader.exec_module(module)
    return module


def _case(size: Size) -> Case:
    return Case(size.name, **size.sizes)


def _seeded_inputs(trial: Trial, seed: int) -> Inputs:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return trial.spec.inputs(trial.case, trial.dtype, trial.device, trial.layout)


def _tensors(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _sizes(sizes: Any) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
