"""Predict benchmark units from a datasheet, without a GPU."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from tilesmith.hardware.devices import device
from tilesmith.lab.bench.measuring.correctness_gate import check_failure
from tilesmith.lab.bench.measuring.gpu_stopwatch import about
from tilesmith.lab.bench.result import Row
from tilesmith.lab.bench.roofline.device_limits import Limits, datasheet_limits
from tilesmith.lab.bench.roofline.floor import place_on_roofline, work_of
from tilesmith.lab.bench.running.bench_units import Source, Unit, check_key, configuration, with_arguments
from tilesmith.lab.bench.running.planned_launches import planned_launches
from tilesmith.lab.check import Trial, interpretable, run
from tilesmith.lab.check.launches import Launches
from tilesmith.spec import CONTIGUOUS, Spec


def start_predicting(source: Source, *, device_name: str) -> tuple[Predictor, dict[str, Any]]:
    """Return a predictor for a device and the facts about the device. Runs in the child process."""
    named = device(device_name)
    limits = datasheet_limits(named)
    facts = {**about(), "device": f"{named.title} (predicted)", "driver": None, "limits": asdict(limits)}
    return Predictor(source, limits, named.architecture.target), facts


class Predictor:
    """Predicts the least time on a device, and checks small cases in the interpreter."""

    def __init__(self, source: Source, limits: Limits, target: str) -> None:
        self.source = source
        self.spec = source.load()
        self._limits = limits
        self._target = target
        self._checked: dict[str, str | None] = {}

    def healthy(self) -> bool:
        return True

    def row(self, unit: Unit) -> Row:
        row = unit.row(self.spec.name, self.source, kind="predicted", method="floor from the datasheet")
        try:
            with configuration(self.source, unit.config):
                self._fill(row, unit)
        except Exception as error:
            row.error = f"{type(error).__name__}: {error}"
        return row

    def _fill(self, row: Row, unit: Unit) -> None:
        spec = with_arguments(self.spec, self.source, unit.config)
        if unit.mode != "fwd" and not spec.differentiable:
            row.error = "no gradient: the operator is not differentiable"
            return
        if not self._passes(row, spec, unit):
            return
        if unit.config and self.source.planned is not None:
            row.launches = self.source.planned(spec, unit.case, unit.dtype, unit.mode, self._target)
        elif unit.config and unit.mode == "fwd":
            row.launches = planned_launches(spec, unit.case, unit.dtype, self._target)
        work = work_of(spec, unit.case, unit.dtype, unit.mode)
        if work is None:
            row.notes.append("no prediction: the spec gives no cost for this mode")
            return
        place_on_roofline(row, work, self._limits, unit.dtype)

    def _passes(self, row: Row, spec: Spec, unit: Unit) -> bool:
        """Return whether the check passes. A swept point whose case is too large is checked on the small cases."""
        small = [case for case in spec.cases if interpretable(spec, case)] if unit.config else []
        is_small = interpretable(spec, unit.case)
        for case in [unit.case] if is_small else small:
            key = check_key(replace(unit, case=case))
            if key not in self._checked:
                trial = Trial(spec, case, unit.dtype, CONTIGUOUS, "cpu")
                self._checked[key] = check_failure(trial, Launches(is_file=True).run if self.source.file else run)
            wrong = self._checked[key]
            if wrong:
                row.checked = False
                row.error = f"refused, because the result is wrong: {'' if is_small else f'on {case.name}: '}{wrong}"
                return False
        if is_small:
            row.checked = True
        elif small:
            names = ", ".join(case.name for case in small)
            row.notes.append(f"too large for the interpreter: the sweep's points were checked on {names}")
        return True
