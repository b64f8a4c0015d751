"""The smallest piece of a benchmark: one provider on one case, dtype and mode. Measured on a GPU, or predicted."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from tilesmith.hardware.devices import Architecture, device, for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.lab.bench.measuring import memory
from tilesmith.lab.bench.measuring.correctness_gate import judged, refusal
from tilesmith.lab.bench.measuring.gpu_stopwatch import GpuStopwatch, about
from tilesmith.lab.bench.measuring.timed_calls import Subject, function_of
from tilesmith.lab.bench.measuring.timing import Stopwatch, measure, rotation
from tilesmith.lab.bench.result import OURS, Row
from tilesmith.lab.bench.roofline.device_limits import Limits, of_datasheet, of_this_gpu
from tilesmith.lab.bench.roofline.verdict import place, verdict, work_of
from tilesmith.lab.check import Trial, interpretable
from tilesmith.spec import CONTIGUOUS, Case, Spec, Work
from tilesmith.toolchain.launches import SeenLaunch, seen_launches

Configured = Callable[..., AbstractContextManager[None]]
Planned = Callable[[Spec, Case, torch.dtype, str, str], list[dict[str, Any]]]
Fields = Callable[[Spec, Case, torch.dtype], list[str]]
Taken = Callable[[Spec, Case, torch.dtype, str], str]


@dataclass(frozen=True)
class Source:
    """Where a spec comes from, in a form that a child process can load it from again.

    `fields(spec, case, dtype)` names what can be swept, `configured(**fields)` sets it, and `planned(spec, case, dtype,
    mode, target)` says what would be launched. Without them, swept fields are arguments of the operator.
    `taken(spec, case, dtype, mode)` says whether its kernels or PyTorch compute such a call when nobody insists.
    """

    load: Callable[[], Spec]
    file: str | None = None
    fields: Fields | None = None
    configured: Configured | None = None
    planned: Planned | None = None
    taken: Taken | None = None


@dataclass(frozen=True)
class Unit:
    case: Case
    dtype: torch.dtype
    mode: str
    provider: str
    config: dict[str, Any] = field(default_factory=dict)

    def row(self, op: str, source: Source, **known: Any) -> Row:
        """A row of this unit that holds nothing yet but whose it is."""
        dtype = str(self.dtype).removeprefix("torch.")
        return Row(
            op, self.case.name, dict(self.case.sizes), dtype, self.mode, self.provider,
            file=source.file, config=dict(self.config), **known,
        )  # fmt: skip


class Measurer:
    """Measures units of one spec on a GPU. Everything that can go wrong with a provider ends up in its row."""

    def __init__(
        self, source: Source, stopwatch: Stopwatch, limits: Limits, *, warm: bool, device: str = "cuda"
    ) -> None:
        self.source = source
        self.spec = source.load()
        self._stopwatch = stopwatch
        self._limits = limits
        self._warm = warm
        self._device = device
        self._checked: dict[str, tuple[str | None, list[dict[str, Any]]]] = {}

    def row(self, unit: Unit) -> Row:
        row = unit.row(self.spec.name, self.source)
        try:
            with configuration(self.source, unit.config):
                self._fill(row, unit)
        except ImportError as error:
            row.error = f"not installed: {error}"
        except Exception as error:
            row.error = f"{type(error).__name__}: {error}"
        finally:
            gc.collect()
            if self._device == "cuda":
                torch.cuda.empty_cache()
        return row

    def healthy(self) -> bool:
        """After an illegal access, or a capture that broke off badly, no call on this device works any more."""
        if self._device != "cuda":
            return True
        try:
            torch.randn(1, device="cuda").item()
        except RuntimeError:
            return False
        return True

    def _fill(self, row: Row, unit: Unit) -> None:
        spec = with_arguments(self.spec, self.source, unit.config)
        if unit.mode != "fwd" and not spec.differentiable:
            row.error = "has no gradient"
            return
        work = work_of(spec, unit.case, unit.dtype, unit.mode)
        if work == Work(0, 0):
            row.bytes = row.flops = 0
            row.error = "nothing to time: it moves no bytes and does no flops"
            return
        if unit.provider == OURS:
            wrong, row.launches = self._gate(spec, unit)
            if wrong:
                row.checked, row.error = False, f"refused, because it is wrong: {wrong}"
                return
            if self.source.taken is not None:
                row.auto = self.source.taken(spec, unit.case, unit.dtype, unit.mode)
            if not row.launches and self._device == "cuda":
                row.notes.append("launches no Triton kernel: PyTorch computes this case")
        subject = Subject(spec, unit.case, unit.dtype, self._device, unit.mode, function_of(spec, unit.provider))
        self._time(row, subject)
        if work is not None:
            place(row, work, self._limits, unit.dtype)
        row.verdict = verdict(row, work, self._limits, unit.dtype) if row.error is None else None

    def _gate(self, spec: Spec, unit: Unit) -> tuple[str | None, list[dict[str, Any]]]:
        """What the check finds wrong, and what was launched meanwhile: once for all modes of a case."""
        key = _key(unit)
        if key not in self._checked:
            with seen_launches() as seen:
                wrong = refusal(Trial(spec, unit.case, unit.dtype, CONTIGUOUS, self._device))
            self._checked[key] = wrong, [_facts(launch) for launch in seen]
        return self._checked[key]

    def _time(self, row: Row, subject: Subject) -> None:
        subject.add_sets(1)
        first = subject.calls[0]()
        output_bytes = sum(output.nbytes for output in first)
        del first
        rotated = rotation(subject.sets[0].nbytes, output_bytes, self._limits.cache_bytes, warm=self._warm)
        subject.add_sets(rotated.sets - 1)
        if self._device == "cuda":
            row.peak_bytes = memory.peak_bytes(subject.calls[0])
            row.kept_bytes = memory.kept_bytes(subject) if row.mode != "fwd" else None
        measured = measure(self._stopwatch, subject.calls, rotated, subject.refresh)
        judgement = judged(subject, measured.outputs)
        row.checked = judgement.wrong is None
        if judgement.wrong:
            # Its time would tempt to a comparison: what is wrong was not computed.
            row.error = f"refused, because it is wrong: {judgement.wrong}"
            return
        if judgement.overwritten:
            row.notes.append(f"overwrites its input {judgement.overwritten}: only its first call was checked")
        timing = measured.timing
        row.device_ms, row.device_ms_spread, row.noise = timing.device_ms, timing.spread_ms, timing.noise
        row.samples, row.method = timing.samples, timing.method
        row.host_us, row.wall_ms = timing.host_us, timing.wall_ms


class Predictor:
    """Says what a named device allows at best, and checks in the interpreter what is small enough for it."""

    def __init__(self, source: Source, limits: Limits, target: str) -> None:
        self.source = source
        self.spec = source.load()
        self._limits = limits
        self._target = target
        self._checked: dict[str, str | None] = {}

    def healthy(self) -> bool:
        return True

    def row(self, unit: Unit) -> Row:
        row = unit.row(self.spec.name, self.source, kind="predicted", method="floor by the datasheet")
        try:
            with configuration(self.source, unit.config):
                self._fill(row, unit)
        except Exception as error:
            row.error = f"{type(error).__name__}: {error}"
        return row

    def _fill(self, row: Row, unit: Unit) -> None:
        spec = with_arguments(self.spec, self.source, unit.config)
        if unit.mode != "fwd" and not spec.differentiable:
            row.error = "has no gradient"
            return
        if not self._passes(row, spec, unit):
            return
        if unit.config and self.source.planned is not None:
            row.launches = self.source.planned(spec, unit.case, unit.dtype, unit.mode, self._target)
        work = work_of(spec, unit.case, unit.dtype, unit.mode)
        if work is None:
            row.notes.append("the spec gives no cost for this mode, so nothing can be predicted")
            return
        place(row, work, self._limits, unit.dtype)

    def _passes(self, row: Row, spec: Spec, unit: Unit) -> bool:
        """Whether nothing is found wrong. A swept point is tried on the small cases where its own is too large."""
        small = [case for case in spec.cases if interpretable(spec, case)] if unit.config else []
        is_small = interpretable(spec, unit.case)
        for case in [unit.case] if is_small else small:
            key = _key(replace(unit, case=case))
            if key not in self._checked:
                self._checked[key] = refusal(Trial(spec, case, unit.dtype, CONTIGUOUS, "cpu"))
            wrong = self._checked[key]
            if wrong:
                row.checked = False
                row.error = f"refused, because it is wrong: {'' if is_small else f'on {case.name}: '}{wrong}"
                return False
        if is_small:
            row.checked = True
        elif small:
            names = ", ".join(case.name for case in small)
            row.notes.append(f"too large for the interpreter: the points were checked on {names}")
        return True


def _key(unit: Unit) -> str:
    """What a check holds for: it covers all modes at once."""
    return f"{unit.case!r} {unit.dtype} {sorted(unit.config.items())}"


def start_measuring(source: Source, *, warm: bool, limits_anew: bool) -> tuple[Measurer, dict[str, Any]]:
    """In the child: take the GPU, know its limits."""
    stopwatch, facts = GpuStopwatch(), about()
    limits = of_this_gpu(stopwatch, facts, stopwatch.cache_bytes, anew=limits_anew)
    return Measurer(source, stopwatch, limits, warm=warm), {**facts, "limits": asdict(limits)}


def start_predicting(source: Source, *, device_name: str) -> tuple[Predictor, dict[str, Any]]:
    """In the child: take the datasheet of a device that need not be here."""
    named = device(device_name)
    limits = of_datasheet(named)
    facts = {**about(), "device": f"{named.title} (predicted)", "driver": None, "limits": asdict(limits)}
    return Predictor(source, limits, named.architecture.target), facts


def configuration(source: Source, config: dict[str, Any]) -> AbstractContextManager[None]:
    """What surrounds a call: the swept fields, and that the operator's own kernels compute."""
    return nullcontext() if source.configured is None else source.configured(**config)


def with_arguments(spec: Spec, source: Source, config: dict[str, Any]) -> Spec:
    """The spec whose operator gets swept fields as arguments, where that is how they reach its kernels."""
    return replace(spec, op=partial(spec.op, **config)) if config and source.configured is None else spec


def sweepable_arguments(spec: Spec) -> list[str]:
    """Arguments of an operator that a sweep may set: those that are not among its inputs."""
    given = spec.inputs(spec.cases[0], spec.dtypes[0], "cpu")
    return [name for name in inspect.signature(spec.op).parameters if name not in given]


def _facts(launch: SeenLaunch) -> dict[str, Any]:
    """A launch as a row holds it, with the occupancy that its binary allows on this GPU."""
    facts: dict[str, Any] = {
        "kernel": launch.kernel,
        "grid": list(launch.grid) if launch.grid else None,
        "constants": {name: _plain(value) for name, value in launch.constants.items()},
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "registers": launch.registers,
        "spill_bytes": launch.spill_bytes,
        "shared_bytes": launch.shared_bytes,
        "occupancy": None,
    }
    architecture = _this_architecture()
    if architecture is not None and launch.registers:
        filled = occupancy(
            architecture, num_warps=launch.num_warps, registers=launch.registers, shared_bytes=launch.shared_bytes
        )
        facts["occupancy"], facts["limited_by"] = filled.occupancy, filled.limited_by
    return facts


def _this_architecture() -> Architecture | None:
    properties = torch.cuda.get_device_properties()
    amd = torch.version.hip is not None
    try:
        return for_target(
            f"hip:{properties.gcnArchName.split(':')[0]}" if amd else f"cuda:{properties.major}{properties.minor}"
        )
    except ValueError:
        return None


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)
