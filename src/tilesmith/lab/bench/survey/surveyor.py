"""Check and time drawn cases on a GPU, one after the other."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tilesmith.lab.bench.measuring.gpu_stopwatch import GpuStopwatch, about, gpu_works
from tilesmith.lab.bench.measuring.timed_calls import Function, InputSet, TimedCalls, function_of, providers
from tilesmith.lab.bench.measuring.timing import Rotation, Stopwatch
from tilesmith.lab.bench.result import OURS
from tilesmith.lab.bench.roofline.device_limits import Limits, gpu_limits
from tilesmith.lab.bench.roofline.floor import floor, work_of
from tilesmith.lab.bench.running.bench_units import Source, configuration
from tilesmith.lab.bench.survey.checking import Checker, inputs_of, with_cotangents
from tilesmith.lab.bench.survey.drawing import Drawn
from tilesmith.lab.bench.survey.racing import Runner, prepared, sets_wanted, timed
from tilesmith.lab.bench.survey.subjects import SLOW_TO_START, Subject, subject, title
from tilesmith.lab.bench.survey.survey_result import AUTO, Direction, Outcome
from tilesmith.spec import Spec, Work

DIRECTIONS = ("fwd", "bwd")


@dataclass(frozen=True)
class DrawnCase:
    """One case of a survey: which operator, which draw, beside which rivals."""

    op: str
    source: Source
    number: int
    drawn: Drawn
    rivals: tuple[str, ...]

    def row(self, op: str, source: Source, *, error: str | None = None) -> Outcome:
        """Return an outcome that identifies this case, with the reason why there is no more."""
        return Outcome(self.op, self.number, title(self.drawn), self.drawn, file=self.source.file, wrong=error)


def chosen_rivals(spec: Spec, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the rivals of a spec with these names; by default those that start quickly, "all" for all."""
    known = [name for name in providers(spec) if name != OURS]
    if names is None:
        return tuple(name for name in known if name not in SLOW_TO_START)
    return tuple(known if list(names) == ["all"] else (name for name in known if name in names))


def start_survey(source: Source, *, limits_anew: bool) -> tuple[Surveyor, dict[str, Any]]:
    """Return a surveyor for this GPU and the facts about the GPU. Runs in the child process."""
    stopwatch, facts = GpuStopwatch(), about()
    limits = gpu_limits(stopwatch, facts, stopwatch.cache_bytes, anew=limits_anew)
    sms = torch.cuda.get_device_properties().multi_processor_count
    gc.freeze()  # a collection after every direction then walks the objects of one case, not those of PyTorch
    return Surveyor(stopwatch, limits), {**facts, "sms": sms, "limits": asdict(limits)}


class Surveyor:
    """Checks and times drawn cases. A rival's exception becomes its error. An exception of ours makes a case wrong."""

    def __init__(self, stopwatch: Stopwatch, limits: Limits, *, device: str = "cuda") -> None:
        self._stopwatch = stopwatch
        self._limits = limits
        self._device = device
        self._specs: dict[str, Spec] = {}

    def row(self, unit: DrawnCase) -> Outcome:
        outcome = unit.row(unit.op, unit.source)
        started = time.perf_counter()
        try:
            self._fill(outcome, unit)
        except Exception as error:
            outcome.wrong = f"{type(error).__name__}: {error}"
        finally:
            self._free()
        outcome.seconds = time.perf_counter() - started
        return outcome

    def healthy(self) -> bool:
        """Return whether the device still works."""
        return self._device != "cuda" or gpu_works()

    def _fill(self, outcome: Outcome, unit: DrawnCase) -> None:
        if unit.op not in self._specs:
            self._specs[unit.op] = unit.source.load()
        one = subject(self._specs[unit.op], unit.drawn)
        made = inputs_of(one, self._device, seed=0)
        errors: dict[str, str] = {}
        functions = self._right(outcome, unit, one, made, errors)
        if outcome.wrong:
            return
        self._free()
        rotated = sets_wanted(made.nbytes, self._limits.cache_bytes)
        sets = [made, *self._more(one, made, rotated.sets - 1)]
        for mode in DIRECTIONS if one.spec.differentiable else DIRECTIONS[:1]:
            work = work_of(one.spec, one.case, one.dtype, mode)
            if work != Work(0, 0):
                outcome.directions[mode] = self._direction(unit, one, mode, functions, sets, rotated, errors)
                self._place(outcome.directions[mode], work, one.dtype)

    def _right(
        self, outcome: Outcome, unit: DrawnCase, one: Subject, made: InputSet, errors: dict[str, str]
    ) -> dict[str, Function]:
        """Return the providers whose results are right, ours first. Note what is wrong with the others."""
        checker = Checker(one, made)
        functions: dict[str, Function] = {}
        wanted = [OURS, *([AUTO] if unit.source.taken is not None else []), *unit.rivals]
        for name in wanted:
            try:
                with _choosing(unit.source, name):
                    function = one.spec.op if name == AUTO else function_of(one.spec, name)
                    reason = None if function is one.plain else checker.wrong(function)  # they are compared with it
            except Exception as error:
                reason = _described(error)
            if reason is None:
                functions[name] = function
            elif name in (OURS, AUTO):
                outcome.wrong = f"{name}: {reason}"
                return {}
            else:
                errors[name] = reason
        return functions

    def _more(self, one: Subject, made: InputSet, number: int) -> list[InputSet]:
        """Return more input sets with other values."""
        found = []
        for seed in range(1, number + 1):
            torch.manual_seed(seed)
            arguments = one.spec.inputs(one.case, one.dtype, self._device)
            found.append(with_cotangents(one, arguments, made.cotangents))
        return found

    def _direction(
        self, unit: DrawnCase, one: Subject, mode: str, functions: dict[str, Function], sets: Sequence[InputSet],
        rotated: Rotation, errors: dict[str, str],
    ) -> Direction:  # fmt: skip
        direction = Direction(errors=dict(errors))
        keep = sets[0].nbytes < self._limits.cache_bytes
        runners: dict[str, Runner] = {}
        for name, function in functions.items():
            calls = TimedCalls(one.spec, one.case, one.dtype, self._device, mode, function)
            try:
                with _choosing(unit.source, name):
                    runners[name] = prepared(
                        self._stopwatch, [calls.call_on(made) for made in sets], rotated, keep=keep
                    )  # fmt: skip
            except Exception as error:
                direction.errors[name] = _described(error)
        for name, found in timed(self._stopwatch, runners).items():
            direction.device_ms[name], direction.noise[name] = found.device_ms, found.noise
        if unit.source.taken is not None:
            direction.auto = unit.source.taken(one.spec, one.case, one.dtype, mode)
        runners.clear()
        self._free()
        return direction

    def _place(self, direction: Direction, work: Work | None, dtype: torch.dtype) -> None:
        """Fill in the least work and the least times."""
        if work is None:
            return
        direction.bytes, direction.flops = work.bytes, work.flops
        direction.floor_ms = floor(work, self._limits, dtype).ms
        direction.copy_ms = work.bytes / (self._limits.copy_tb_per_s * 1e9)

    def _free(self) -> None:
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()


def _choosing(source: Source, name: str) -> AbstractContextManager[None]:
    """Return the context of a provider's calls: our own kernels are chosen for ours, nothing for the others."""
    return configuration(source, {}) if name == OURS else nullcontext()


def _described(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"not installed: {error}"
    return f"{type(error).__name__}: {error}".splitlines()[0]
