"""Measure benchmark units on a GPU."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any

import torch

from tilesmith.hardware.devices import Architecture, for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.lab.bench.measuring import memory
from tilesmith.lab.bench.measuring.correctness_gate import check_failure, judge_outputs
from tilesmith.lab.bench.measuring.gpu_stopwatch import GpuStopwatch, about, gpu_works
from tilesmith.lab.bench.measuring.timed_calls import TimedCalls, function_of
from tilesmith.lab.bench.measuring.timing import Stopwatch, measure
from tilesmith.lab.bench.result import OURS, Row
from tilesmith.lab.bench.roofline.device_limits import Limits, gpu_limits
from tilesmith.lab.bench.roofline.floor import place_on_roofline, work_of
from tilesmith.lab.bench.roofline.verdict import verdict
from tilesmith.lab.bench.running.bench_units import Source, Unit, check_key, configuration, with_arguments
from tilesmith.lab.check import Trial
from tilesmith.spec import CONTIGUOUS, Spec, Work
from tilesmith.toolchain.launches import SeenLaunch, seen_launches


def start_measuring(source: Source, *, warm: bool, limits_anew: bool) -> tuple[Measurer, dict[str, Any]]:
    """Return a measurer for this GPU and the facts about the GPU. Runs in the child process."""
    stopwatch, facts = GpuStopwatch(), about()
    limits = gpu_limits(stopwatch, facts, stopwatch.cache_bytes, anew=limits_anew)
    return Measurer(source, stopwatch, limits, warm=warm), {**facts, "limits": asdict(limits)}


class Measurer:
    """Measures units of one spec on a GPU. A provider's exception becomes the error of its row."""

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
        """Return whether the device still works."""
        return self._device != "cuda" or gpu_works()

    def _fill(self, row: Row, unit: Unit) -> None:
        spec = with_arguments(self.spec, self.source, unit.config)
        if unit.mode != "fwd" and not spec.differentiable:
            row.error = "no gradient: the operator is not differentiable"
            return
        work = work_of(spec, unit.case, unit.dtype, unit.mode)
        if work == Work(0, 0):
            row.bytes = row.flops = 0
            row.error = "nothing to time: no bytes and no flops"
            return
        if unit.provider == OURS:
            wrong, row.launches = self._check(spec, unit)
            if wrong:
                row.checked, row.error = False, f"refused, because the result is wrong: {wrong}"
                return
            if self.source.taken is not None:
                row.auto = self.source.taken(spec, unit.case, unit.dtype, unit.mode)
            if not row.launches and self._device == "cuda":
                row.notes.append("no Triton kernel launched: PyTorch computes this case")
        timed = TimedCalls(spec, unit.case, unit.dtype, self._device, unit.mode, function_of(spec, unit.provider))
        self._time(row, timed)
        if work is not None:
            place_on_roofline(row, work, self._limits, unit.dtype)
        row.verdict = verdict(row, work, self._limits, unit.dtype) if row.error is None else None

    def _check(self, spec: Spec, unit: Unit) -> tuple[str | None, list[dict[str, Any]]]:
        """Check the operator once for all modes. Return the error, if any, and the launches."""
        key = check_key(unit)
        if key not in self._checked:
            with seen_launches() as seen:
                wrong = check_failure(Trial(spec, unit.case, unit.dtype, CONTIGUOUS, self._device))
            self._checked[key] = wrong, [_facts(launch) for launch in seen]
        return self._checked[key]

    def _time(self, row: Row, timed: TimedCalls) -> None:
        rotated = timed.add_rotated_sets(self._limits.cache_bytes, warm=self._warm)
        if self._device == "cuda":
            row.peak_bytes = memory.peak_bytes(timed.calls[0])
            row.kept_bytes = memory.kept_bytes(timed) if row.mode != "fwd" else None
        measured = measure(self._stopwatch, timed.calls, rotated, timed.refresh, timed.stir)
        judgement = judge_outputs(timed, measured.outputs)
        row.checked = judgement.wrong is None
        if judgement.wrong:
            # The time of a wrong result must not be compared.
            row.error = f"refused, because the result is wrong: {judgement.wrong}"
            return
        if judgement.overwritten:
            row.notes.append(f"overwrites its input {judgement.overwritten}: only the first call was checked")
        timing = measured.timing
        row.device_ms, row.device_ms_spread, row.noise = timing.device_ms, timing.spread_ms, timing.noise
        row.samples, row.method = timing.samples, timing.method
        row.host_us, row.wall_ms = timing.host_us, timing.wall_ms


def _facts(launch: SeenLaunch) -> dict[str, Any]:
    """Return a launch as JSON data, with its occupancy on this GPU."""
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
