"""The versions of a model side by side: first that they mean the same, then each trained on the same data."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from tilesmith.training.distributed import Place
from tilesmith.training.parity import parities
from tilesmith.training.phases import phase_milliseconds
from tilesmith.training.run import DTYPES, Record, Run, Settings
from tilesmith.training.tasks import Task

Progress = Callable[[Run], AbstractContextManager[Callable[[Record], None]]]


def compared(
    task: Task, settings: Settings, variants: Sequence[str], place: Place, progress: Progress
) -> dict[str, Any]:
    """As `tilesmith compare --json` holds it. A version that computes something else than v1 gets no time."""
    found = parities(task, list(variants), DTYPES[settings.dtype], place, settings.batch_size)
    runs: list[dict[str, Any]] = []
    for parity in found:
        if parity.passed and not (runs and runs[-1]["partial"]):
            runs.append(_trained(task, replace(settings, variant=parity.variant), place, progress))
    return {"model": task.name, "parity": [one.as_json() for one in found], "variants": runs}


def _trained(task: Task, settings: Settings, place: Place, progress: Progress) -> dict[str, Any]:
    # What the last version held must not count as this one's: a run is full of cycles, which only this frees.
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
