"""How long forward, backward and optimiser take, each by itself: measured apart from the run, which never waits."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

import torch

from tilesmith.training.run import Run
from tilesmith.training.steps import Phase

REPETITIONS = {"cuda": 10, "cpu": 3}


def phase_milliseconds(run: Run) -> dict[str, float]:
    """The median of each phase, with the device idle before and after. The run goes on training meanwhile."""
    device = run.place.device
    phases = run.phases()
    rounds = [_timed(phases, device) for _ in range(REPETITIONS[device.type])]
    return {phase: median(times[phase] for times in rounds) for phase in rounds[0]}


def _timed(phases: list[Phase], device: torch.device) -> dict[str, float]:
    """One step. Phases of one name, as accumulated pieces have them, are added up."""
    times: dict[str, float] = defaultdict(float)
    for phase in phases:
        _wait(device)
        started = time.perf_counter()
        phase.run()
        _wait(device)
        times[phase.name] += 1000 * (time.perf_counter() - started)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
