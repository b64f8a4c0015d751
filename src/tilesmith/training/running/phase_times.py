"""Times of forward, backward and optimiser, measured after the run, because a run never waits for the device."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

import torch

from tilesmith.training.running.run import Run
from tilesmith.training.running.step import Phase

REPETITIONS = {"cuda": 10, "cpu": 3}


def phase_milliseconds(run: Run) -> dict[str, float]:
    """Return the median of each phase, with an idle device before and after. This trains the run's model further."""
    device = run.place.device
    phases = run.phases()
    rounds = [_timed(phases, device) for _ in range(REPETITIONS[device.type])]
    return {phase: median(times[phase] for times in rounds) for phase in rounds[0]}


def _timed(phases: list[Phase], device: torch.device) -> dict[str, float]:
    """Return the times of one step; phases of the same name, as with micro-batches, are added."""
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
