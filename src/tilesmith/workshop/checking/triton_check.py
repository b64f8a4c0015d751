"""All stages of a check for a Triton file, inside the child process. The first stage that fails ends the check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.check import Trial
from tilesmith.lab.check import run as compared
from tilesmith.lab.check.context import seeded
from tilesmith.lab.comparison import identical
from tilesmith.lab.expected import Expected
from tilesmith.lab.inspect.metrics.compiled_targets import compiled_or_error
from tilesmith.spec import CONTIGUOUS, LAYOUTS, Case, Inputs, Spec, called
from tilesmith.toolchain.compiler import DEFAULT_TARGETS, Target
from tilesmith.toolchain.interpreter import Launched, handing_over, interpreting
from tilesmith.toolchain.interpreter.running import UNKNOWN
from tilesmith.workshop.checking import evaded_work, failure_messages
from tilesmith.workshop.checking.constant_sweep import each_value, sweep_table
from tilesmith.workshop.checking.goals import Measured, measure
from tilesmith.workshop.checking.loading import load_module
from tilesmith.workshop.checking.nan_origin import nan_origin
from tilesmith.workshop.checking.pretended_gpu import dtypes_of_results, tensor_left_on_cpu
from tilesmith.workshop.checking.program_order import last_program_first
from tilesmith.workshop.checking.staged_check import StagedCheck, StageFailure
from tilesmith.workshop.checking.traced_call import TracedCall, trace_call
from tilesmith.workshop.checking.unfinished_code import first_problem
from tilesmith.workshop.course.exercise import Exercise, ExerciseError, Goal, Size

_LARGER = 16  # times a size, to see whether more programs share more work
_LAYOUT_IN_WORDS = {
    "row-strided": "row-strided (gaps between the rows in memory)",
    "transposed": "transposed (the strides exchanged)",
    "offset": "offset (the tensor begins in the middle of its memory)",
    "expanded": "expanded (one row, seen many times)",
}


class TritonCheck(StagedCheck):
    """A check of one Triton file."""

    def __init__(self, exercise: Exercise, file: Path, entering: Callable[[str], None] = lambda stage: None) -> None:
        super().__init__(exercise, file, entering)
        self._spec: Spec | None = None
        self._calls: dict[Any, TracedCall] = {}
        self.latest: TracedCall | None = None  # after a failure: the call that failed

    def _pass_stages(self) -> tuple[str, list[str]]:
        self._require_parses()
        trials = self._all_trials()
        self._entering("compiles")
        self._require_compiles(trials[0])
        self._entering("runs")
        for trial in trials:
            self._require_runs(trial)
        self._require_same_device(trials)
        self._require_every_candidate_runs(trials[0])
        self._entering("right")
        for trial in trials:
            self._require_right(trial)
        if self.exercise.dtypes == ("float32",):
            self._require_results_in_half(trials)
        self._require_right_again(trials)
        if self.spec.differentiable:
            self._require_own_gradients(trials[0])
        self._entering("goals")
        self._require_own_work(trials)
        if self.exercise.sweep is not None:
            timed = next(iter(self.exercise.timed), None)
            self._table = sweep_table(self.spec, self._measured_anew, self.exercise.sweep, timed)
        self._require_goals(self._worst_over_candidates, lambda goal: _sizes(self.exercise.size(goal.size).sizes))
        speed = self._measure_speed() if self.exercise.timed and torch.cuda.is_available() else []
        return "speed" if speed else "goals", speed

    def measured(self, size: Size | None = None, candidate: int | None = None) -> TracedCall:
        """Return the traced call that goals and questions are about; an earlier call if there was one.

        Default: the measured size, and the autotuner's first configuration.
        """
        return self._call(self._measured_trial(size), candidate)

    def _measured_anew(self) -> TracedCall:
        """Return a new call at the measured size, compiled for the first target alone."""
        return self._new_call(self._measured_trial(None), None, DEFAULT_TARGETS[:1])

    def compile_ahead(self) -> None:
        """Compile the kernels of the check without running them, those that the check needs last first.

        A process beside the check does this. The check then finds most of its binaries in Triton's cache.
        """
        first, *others = self._all_trials()
        self._compile(first, DEFAULT_TARGETS[1:])
        for trial in reversed(others):
            self._compile(trial, self._targets(trial, None))
        if self.exercise.sweep is not None:
            for _ in each_value(self.spec, self.exercise.sweep, reversed(self.exercise.sweep.values)):
                self._compile(self._measured_trial(None), DEFAULT_TARGETS[:1])

    def _compile(self, trial: Trial, targets: Sequence[Target]) -> None:
        with suppress(Exception), handing_over(_Compiling(targets)):
            called(trial.spec.op, seeded_inputs(trial, seed=0))

    def _measured_trial(self, size: Size | None) -> Trial:
        return Trial(self.spec, _case(size or self.exercise.measured), self.spec.dtypes[0], CONTIGUOUS, "cpu")

    @property
    def spec(self) -> Spec:
        """Return the exercise's spec with the learner's function as operator."""
        if self._spec is None:
            self._spec = _spec(self.exercise, self._function())
        return self._spec

    def _require_parses(self) -> None:
        self._entering("parses")
        problem = first_problem(self.file, self.exercise.function)
        if problem is not None:
            raise StageFailure("parses", problem)

    def _function(self) -> Callable[..., Any]:
        try:
            function = getattr(load_module(self.file), self.exercise.function)
        except BaseException as error:
            raise StageFailure("runs", failure_messages.exception_while_importing(error, self.file)) from error
        if not callable(function):
            raise StageFailure("runs", f"{self.exercise.function} is {function!r}, which is not a function.")
        return function  # type: ignore[no-any-return]  # getattr gives Any

    def _all_trials(self) -> list[Trial]:
        return [*self._trials(self.exercise.visible), *self._trials(self.exercise.hidden)]

    def _trials(self, sizes: Sequence[Size]) -> Iterator[Trial]:
        """Yield the visible sizes in the first dtype and layout, the hidden sizes in every dtype and layout."""
        spec = self.spec
        plain = sizes is self.exercise.visible
        for size in sizes:
            for dtype in spec.dtypes[:1] if plain else spec.dtypes:
                for layout in spec.layouts[:1] if plain else spec.layouts:
                    yield Trial(spec, _case(size), dtype, layout, "cpu")

    def _call(self, trial: Trial, candidate: int | None = None) -> TracedCall:
        key = (trial.case.name, trial.dtype, trial.layout.name, candidate)
        if key not in self._calls:
            self._calls[key] = self._new_call(trial, candidate, self._targets(trial, candidate))
        self.latest = self._calls[key]
        return self._calls[key]

    def _new_call(self, trial: Trial, candidate: int | None, targets: Sequence[Target]) -> TracedCall:
        exercise, inputs = self.exercise, seeded_inputs(trial, seed=0)
        return trace_call(trial.spec.op, inputs, self.file, exercise.allow, exercise.forbid, targets, candidate)

    def _targets(self, trial: Trial, candidate: int | None) -> Sequence[Target]:
        # Compiling takes most of the time. The visible sizes already show that the kernels compile for AMD.
        hidden = trial.case.name in {size.name for size in self.exercise.hidden if size is not self.exercise.measured}
        return DEFAULT_TARGETS[:1] if hidden or candidate is not None else DEFAULT_TARGETS

    def _require_compiles(self, trial: Trial) -> None:
        reason = failure_messages.not_compiled(self._call(trial), self.file)
        if reason is not None:
            raise StageFailure("compiles", self._with_sizes(trial, reason))

    def _require_runs(self, trial: Trial) -> None:
        self._require_compiles(trial)
        reason = failure_messages.not_run(self._call(trial), self.file)
        if reason is not None:
            raise StageFailure("runs", self._with_sizes(trial, reason + failure_messages.brackets(self.file)))

    def _require_same_device(self, trials: Sequence[Trial]) -> None:
        """Require that calls with inputs on a GPU would allocate there, and so would their backwards."""
        function = self._function()  # loaded anew: the one that ran may keep tensors of its calls
        for trial in trials:
            inputs = seeded_inputs(trial, seed=0)
            if self.spec.differentiable:
                _leaves(inputs)
            left = tensor_left_on_cpu(function, inputs)
            if left is not None:
                raise StageFailure("runs", failure_messages.left_on_cpu(left, inputs))

    def _require_every_candidate_runs(self, trial: Trial) -> None:
        """Run all configurations of an autotuner: which one a GPU would choose is unknown here."""
        for number, candidate in self._other_candidates(self._call(trial)):
            reason = failure_messages.not_run(self._call(trial, number), self.file)
            if reason is not None:
                message = f"{reason}\n{failure_messages.with_candidate(candidate)}"
                raise StageFailure("runs", self._with_sizes(trial, message))

    @staticmethod
    def _other_candidates(call: TracedCall) -> Iterator[tuple[int, Any]]:
        return ((number, one) for number, one in enumerate(call.candidates) if number > 0)

    def _require_right(self, trial: Trial) -> None:
        self._call(trial)
        for result in compared(trial):
            if not result.passed:
                message = failure_messages.wrong_result(result.what, result.message, self.file)
                if " is nan, " in result.message:
                    message += failure_messages.origin_of_nan(nan_origin(trial.spec.op, seeded_inputs(trial, seed=0)))
                message = self._with_sizes(trial, message + failure_messages.brackets(self.file))
                lesson = self.exercise.size(trial.case.name).lesson
                raise StageFailure("right", f"{message}\n{lesson}" if lesson else message)

    def _require_results_in_half(self, trials: Sequence[Trial]) -> None:
        """Require the dtypes of the model's results for inputs in float16. Their numbers are not checked."""
        function, model = self._function(), model_spec(self.exercise).op
        for trial in trials:
            inputs = seeded_inputs(replace(trial, dtype=torch.float16), seed=0)
            made, wanted = (dtypes_of_results(one, inputs) for one in (function, model))
            if made and made != wanted:
                raise StageFailure("right", failure_messages.dtype_of_result(made, wanted, inputs))

    def _require_right_again(self, trials: Sequence[Trial]) -> None:
        """Call twice with different numbers, the second time with the programs in reverse order.

        The results must be right and in different memory. The trial with most programs shows most.
        """
        trial = max(trials, key=lambda one: self._call(one).programs)
        first, second = (seeded_inputs(trial, seed) for seed in (0, 1))
        before = self._called_again(trial, first, interpreting())
        after = self._called_again(trial, second, last_program_first())
        if {one.data_ptr() for one in before} & {one.data_ptr() for one in after if one.numel()}:
            raise StageFailure("right", failure_messages.cached(shared=True))
        expected = Expected(trial.spec.reference, seeded_inputs(trial, seed=1))
        if not _all_right(expected, after):
            in_order = self._called_again(trial, seeded_inputs(trial, seed=1), interpreting())
            if _all_right(expected, in_order):
                raise StageFailure("right", self._with_sizes(trial, failure_messages.order_matters()))
            raise StageFailure("right", failure_messages.cached(shared=False))

    def _require_own_gradients(self, trial: Trial) -> None:
        """Call twice, and require that the gradients of the first call do not depend on the second."""

        def gradients(calls: int) -> list[Tensor]:
            made = [seeded_inputs(trial, seed) for seed in range(calls)]
            leaves = _leaves(made[0])
            outputs = [_tensors(called(trial.spec.op, inputs)) for inputs in made]
            return list(torch.autograd.grad([one.sum() for one in outputs[0]], leaves, allow_unused=True))

        with interpreting():
            alone, followed = gradients(1), gradients(2)
        if not all(map(identical, alone, followed)):
            raise StageFailure("right", self._with_sizes(trial, failure_messages.gradient_of_another_call()))

    def _called_again(self, trial: Trial, inputs: Inputs, running: AbstractContextManager[Any]) -> list[Tensor]:
        """Return the outputs of a later call. Raises StageFailure where the function raises."""
        try:
            with running:
                return _tensors(called(trial.spec.op, inputs))
        except BaseException as error:
            waits = str(error).startswith(UNKNOWN)  # for a program that runs later
            reason = failure_messages.order_matters() if waits else failure_messages.raised_again(error, self.file)
            raise StageFailure("right", self._with_sizes(trial, reason)) from error

    def _require_own_work(self, trials: Sequence[Trial]) -> None:
        """Require that the kernels do the work of the exercise, and that many programs share it."""
        exercise, calls = self.exercise, [self._call(one) for one in trials]
        inputs = [seeded_inputs(one, seed=0) for one in trials]
        for trial, call, given in zip(trials, calls, inputs, strict=True):
            view = evaded_work.view_in_place_of_matrix(call.outputs, _tensors(called(trial.spec.reference, given)))
            if view is not None:
                raise StageFailure("right", self._with_sizes(trial, view))
        model = model_spec(exercise).op
        coarse = evaded_work.key_too_coarse(self.spec.op, calls) or evaded_work.size_without_key(
            self.spec.op, model, inputs[0], lambda: self._larger_inputs(trials[0]), _LARGER
        )
        if coarse is not None:
            raise StageFailure("goals", coarse)
        goals = {goal.metric for goal in exercise.goals}
        reason = evaded_work.too_little_parallel(calls, model, inputs, goals, lambda: self._shares_larger_work(trials))
        largest = max(range(len(calls)), key=lambda number: calls[number].programs)
        reason = reason or evaded_work.one_element_at_a_time(calls[largest], model, inputs[largest])
        if reason is not None:
            raise StageFailure("goals", reason)
        allow = {*exercise.allow} - {*exercise.forbid}
        source = self.file.read_text(encoding="utf-8", errors="replace")
        found = evaded_work.torch_for_other_sizes(source, exercise.function, allow)
        if found is not None:
            raise StageFailure("runs", failure_messages.torch_call_for_other_sizes(self.file, *found))

    def _shares_larger_work(self, trials: Sequence[Trial]) -> bool:
        """Return whether several programs share the work where one size of a trial is larger."""
        return evaded_work.shares_larger_work(self.spec.op, self._larger_inputs(trials[0]).values())

    @staticmethod
    def _larger_inputs(trial: Trial) -> dict[str, Inputs]:
        """Return inputs of a trial in which one size is larger, by the name of this size."""
        return {
            name: seeded_inputs(
                replace(trial, case=Case(trial.case.name, **{**trial.case.sizes, name: _LARGER * size})), 0
            )
            for name, size in trial.case.sizes.items()
            if isinstance(size, int)
        }

    def _worst_over_candidates(self, goal: Goal) -> Measured:
        """Return the value of a goal; with an autotuner, that of the first configuration that misses the goal."""
        size = self.exercise.size(goal.size)
        try:
            call = self.measured(size)
            found = measure(goal, call)
            for number, candidate in self._other_candidates(call):
                if not goal.met_by(found.value):
                    break
                other = measure(goal, self.measured(size, number))
                where = ", ".join(filter(None, [other.where, failure_messages.with_candidate(candidate)]))
                found = found if goal.met_by(other.value) else replace(other, where=where)
        except LookupError as error:
            raise StageFailure("goals", f"{goal.name} cannot be measured: {error.args[0]}.") from error
        return found

    def _measure_speed(self) -> list[str]:
        from tilesmith.workshop.checking.gpu_timing import time_on_gpu

        self._entering("speed")
        lines: list[str] = []
        for size in self.exercise.timed:
            speed = time_on_gpu(self.spec, _case(size))
            if speed.error is not None:
                raise StageFailure("speed", f"Your file passes without a GPU, but fails on this GPU: {speed.error}")
            lines += speed.lines
        return lines

    def _with_sizes(self, trial: Trial, reason: str) -> str:
        """Return a reason with the sizes that were tried: which sizes fail explains a lot."""
        dtype = str(trial.dtype).removeprefix("torch.")
        shown = trial.case.name in {size.name for size in self.exercise.visible}
        layout = _LAYOUT_IN_WORDS.get(trial.layout.name, trial.layout.name)
        extra = "" if shown else f", {dtype}, {layout}: a case that the page does not list"
        return f"{reason}\n(tried with {_sizes(trial.case.sizes)}{extra})"


@dataclass(frozen=True)
class _Compiling:
    """Compiles launches and performs none."""

    targets: Sequence[Target]

    def launch(self, launched: Launched) -> None:
        for target in self.targets:
            compiled_or_error(launched, target)

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return candidates[0]


def _spec(exercise: Exercise, function: Callable[..., Any]) -> Spec:
    meaning = load_module(exercise.folder / "meaning.py")
    layouts = {layout.name: layout for layout in LAYOUTS}
    unknown = [name for name in exercise.layouts if name not in layouts]
    if unknown:
        raise ExerciseError(f"{exercise.id}: there is no layout {unknown[0]!r}; the layouts are {', '.join(layouts)}")
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
    """Return the exercise's spec with the model solution as operator."""
    return _spec(exercise, getattr(load_module(exercise.solution), exercise.function))


def _case(size: Size) -> Case:
    return Case(size.name, **size.sizes)


def seeded_inputs(trial: Trial, seed: int) -> Inputs:
    """Return the inputs of a trial, the same for every call with this seed."""
    with seeded("cpu", seed):
        return trial.spec.inputs(trial.case, trial.dtype, trial.device, trial.layout)


def _leaves(inputs: Inputs) -> list[Tensor]:
    """Return the inputs that a gradient can be wanted of, and let autograd know."""
    return [one.requires_grad_() for one in inputs.values() if isinstance(one, Tensor) and one.is_floating_point()]


def _tensors(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


def _all_right(expected: Expected, outputs: Sequence[Tensor]) -> bool:
    return all(expected.compare_output(number, one).passed for number, one in enumerate(outputs))


def _sizes(sizes: Any) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
