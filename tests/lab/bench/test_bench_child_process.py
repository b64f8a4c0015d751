"""A kernel that crashes its process loses its own row only."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tilesmith.lab.bench.measuring.sensors import Reading, Sensors
from tilesmith.lab.bench.result import Row
from tilesmith.lab.bench.running import child_process
from tilesmith.lab.bench.running.bench_units import Source, Unit
from tilesmith.lab.bench.running.child_process import About, Event, Job, Started
from tilesmith.lab.bench.running.predictor import start_predicting
from tilesmith.lab.bench.running.run_jobs import collect
from tilesmith.lab.bench.selection import Selection, units
from tilesmith.spec import load_file

FORKED = pytest.mark.usefixtures("forked")
DEADLY = """
import faulthandler, os, signal, time
import torch
from tilesmith.spec import Case, Spec


def op(x):
    if x.shape[0] == 2:
        faulthandler.disable()  # pytest's handler would print a traceback
        os.kill(os.getpid(), signal.SIGSEGV)
    if x.shape[0] == 4:
        time.sleep(500)
    return 2 * x


SPEC = Spec(
    name="deadly", op=op, reference=lambda x: 2 * x, dtypes=(torch.float32,), differentiable=False,
    cases=[Case("one", rows=1), Case("two", rows=2), Case("three", rows=3), Case("four", rows=4)],
    make_inputs=lambda case, dtype, device: {"x": torch.randn(case.rows, dtype=dtype, device=device)},
)
"""


def job(path: Path, *cases: str) -> Job:
    spec, source = load_file(path), Source(partial(load_file, path), file=str(path))
    start = partial(start_predicting, device_name="h200")
    return Job(spec.name, source, units(spec, source, Selection(cases=cases, rivals=[])), start)


@pytest.fixture
def deadly(tmp_path: Path) -> Path:
    path = tmp_path / "deadly.py"
    path.write_text(DEADLY)
    return path


@FORKED
def test_crash_becomes_a_row_and_the_run_continues(deadly: Path) -> None:
    rows = [event for event in child_process.run_job(job(deadly, "one", "two", "three")) if isinstance(event, Row)]
    assert [(row.case, row.checked, row.error) for row in rows] == [
        ("one", True, None),
        ("two", None, "its process was killed by SIGSEGV"),
        ("three", True, None),
    ]


@FORKED
def test_hanging_unit_is_stopped(deadly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "LONGEST_UNIT_SECONDS", 3.0)
    rows = [event for event in child_process.run_job(job(deadly, "four", "one")) if isinstance(event, Row)]
    assert [row.error for row in rows] == ["no result after 3 s: stopped", None]


@FORKED
def test_a_spec_that_cannot_be_loaded_again_fails_every_unit_once(deadly: Path) -> None:
    loaded = job(deadly, "one", "three")
    deadly.unlink()
    rows = [event for event in child_process.run_job(loaded) if isinstance(event, Row)]
    assert [row.error for row in rows] == [f"SpecError: {deadly}: no such file"] * 2


@FORKED
def test_an_interrupt_keeps_what_was_measured(deadly: Path) -> None:
    def interrupt(job: Job, event: Event) -> None:
        if isinstance(event, Started) and event.unit.case.name == "three":
            raise KeyboardInterrupt

    result = collect([job(deadly, "one", "three")], report=interrupt)
    assert result["partial"]
    assert [row["case"] for row in result["rows"]] == ["one"]


@FORKED
def test_first_event_describes_the_device(deadly: Path) -> None:
    first = next(iter(child_process.run_job(job(deadly, "one"))))
    assert isinstance(first, About)
    assert first.facts["torch"] == torch.__version__
    assert first.facts["limits"]["copy_tb_per_s"] == 4.8


class Busy:
    """A worker with one compute-bound row at 80 % that runs long enough for sensor readings."""

    def row(self, unit: Unit) -> Row:
        time.sleep(5 * child_process.POLL_SECONDS)
        known: dict[str, Any] = {"device_ms": 1.0, "floor_ms": 0.8, "verdict": "compute-bound: 80%."}
        return Row("busy", unit.case.name, {}, "float32", unit.mode, unit.provider, **known)

    def healthy(self) -> bool:
        return True


def start_busy(source: Source) -> tuple[Busy, dict[str, Any]]:
    return Busy(), {}


@FORKED
def test_verdict_mentions_the_power_cap_seen_by_sensors(deadly: Path) -> None:
    readings = [Reading(1500, 700, 0x4)] * 100 + [Reading(1980, 100, 0x1)]
    sensors = Sensors(readings.pop, seconds_apart=0.0)
    sensors.sample()
    (row,) = collect([replace(job(deadly, "one"), start=start_busy)], sensors=sensors)["rows"]
    assert row["throttled"] == ["power cap"]
    assert row["verdict"].startswith("compute-bound: 80%. But the power cap held the clock at 1500 of 1980 MHz")
