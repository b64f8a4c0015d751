"""Time a launch on a GPU and explain why it takes longer than predicted."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from tilesmith.lab.inspect.model import TargetFacts
from tilesmith.toolchain.interpreter import Launched, launch_as_usual

REPETITIONS = 7
LAUNCH_BOUND_US = 5.0  # the launch itself takes about this long on any GPU
CLOSE_TO_FLOOR = 1.3


def measured_us(launched: Launched) -> float | None:
    """Return the median time of a launch on copies of its tensors; None where the launch fails."""
    try:
        copied = Launched(launched.kernel, launched.grid, _copies(launched.arguments), launched.options)
        launch_as_usual(copied)  # compiles
        times: list[float] = []
        event: Any = torch.cuda.Event
        for _ in range(REPETITIONS):
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            launch_as_usual(copied)
            end.record()
            end.synchronize()
            times.append(1e3 * start.elapsed_time(end))
    except (RuntimeError, torch.OutOfMemoryError):
        return None
    return median(times)


def explain_time(measured: float, facts: TargetFacts) -> str:
    """Return one line that compares the measured with the predicted time and names the likely cause."""
    floor = facts.predicted_floor_us
    if floor is None:
        return f"{measured:.1f} µs measured; no prediction for this target"
    times = f"{measured:.1f} µs measured, at least {floor:.1f} µs predicted: "
    if measured <= CLOSE_TO_FLOOR * floor:
        return times + "at the hardware limit"
    if floor < LAUNCH_BOUND_US:
        return times + "launch-bound, the work is shorter than the launch"
    if facts.waves is not None and facts.waves < 1:
        return times + f"the grid fills only {facts.waves:.0%} of the GPU"
    if facts.spill_bytes:
        return times + "registers spill to local memory"
    if facts.predicted_memory_us == floor:
        return times + "bytes move more than once, or too few loads are in flight"
    return times + "the arithmetic units wait for data or for each other"


def _copies(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
