"""The versions of a model side by side: first their parity, then a training run of each on the same data."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from tilesmith.training.data.tasks import Task
from tilesmith.training.results.parity import parities
from tilesmith.training.running.distributed import Place
from tilesmith.training.running.phase_times import phase_milliseconds
from tilesmith.training.running.run import DTYPES, Record, Run, Settings

Progress = Callable[[Run], AbstractContextManager[Callable[[Record], None]]]


def compared(
    task: Task, settings: Settings, variants: Sequence[str], place: Place, progress: Progress
) -> dict[str, Any]:
    """Return the comparison in the format of `tilesmith compare --json`. A version that fails parity is not timed."""
    found = parities(task, list(variants), DTYPES[settings.dtype], place, settings.batch_size)
    runs: list[dict[str, Any]] = []
    for parity in found:
        if parity.passed and not (runs and runs[-1]["partial"]):
            runs.append(_trained(task, replace(settings, variant=parity.variant), place, progress))
    return {"model": task.name, "parity": [one.as_json() for one in found], "variants": runs}


def _trained(task: Task, settings: Settings, place: Place, progress: Progress) -> dict[str, Any]:
    # Free the previous version's memory, so that it does not count here: a run has reference cycles.
    gc.collect()
    if place.device.type == "cuda":
        torch.cuda.empty_cache()
    run = Run(task, settings, place)
    try:
        with progress(run) as report:
            run.train(report)
        return run.result(phase_milliseconds(run))
    finally:
        run.close()
