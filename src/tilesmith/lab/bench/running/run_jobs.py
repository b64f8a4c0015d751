"""Run all jobs of a benchmark and gather one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilesmith.lab.bench.measuring.sensors import Sensors
from tilesmith.lab.bench.result import Row, result
from tilesmith.lab.bench.running.child_process import About, Event, Job, run_job


def collect(
    jobs: Iterable[Job],
    *,
    sensors: Sensors | None = None,
    report: Callable[[Job, Event], None] = lambda job, event: None,
) -> dict[str, Any]:
    """Run the jobs and report every event. After an interrupt the result is partial."""
    rows: list[Row] = []
    about: dict[str, Any] = {}
    partial = False
    try:
        for job in jobs:
            for event in run_job(job, sensors):
                if isinstance(event, About):
                    about = event.facts
                elif isinstance(event, Row):
                    rows.append(event)
                report(job, event)
    except KeyboardInterrupt:
        partial = True
    return result(rows, about=about, limits=about.get("limits"), partial=partial)
