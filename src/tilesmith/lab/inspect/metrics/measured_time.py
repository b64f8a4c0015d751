"""With a GPU, what a launch really takes, and why that is more than was predicted."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from tilesmith.lab.inspect.model import TargetFacts
from tilesmith.toolchain.interpreter import Launched, launch_as_usual

REPETITIONS = 7
LAUNCH_BOUND_US = 5.0  # a launch takes about as long on any GPU, whatever it does
CLOSE = 1.3


def measured_us(launched: Launched) -> float | None:
    """The median time of a launch, on copies of its tensors; None where it cannot be timed."""
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


def explained(measured: float, facts: TargetFacts) -> str:
    """The difference between the measured and the predicted time in one line."""
    floor = facts.predicted_floor_us
    if floor is None:
        return f"{measured:.1f} µs measured; nothing is predicted for this target"
    times = f"{measured:.1f} µs measured, {floor:.1f} µs predicted at least: "
    if measured <= CLOSE * floor:
        return times + "at the limit of the hardware"
    if floor < LAUNCH_BOUND_US:
        return times + "too little work for its time to show above that of launching"
    if facts.waves is not None and facts.waves < 1:
        return times + f"its programs fill only {facts.waves:.0%} of the GPU"
    if facts.spill_bytes:
        return times + "registers are spilled to memory"
    if facts.predicted_memory_us == floor:
        return times + "bytes are moved more than once, or too few are under way at a time"
    return times + "the arithmetic units wait: for data, or for each other"


def _copies(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
