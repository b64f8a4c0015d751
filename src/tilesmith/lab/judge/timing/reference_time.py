"""The time of a task's definition on the GPU, by the same clock, and the limits of the GPU. In the judge's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tilesmith.lab.bench.measuring.gpu_stopwatch import GpuStopwatch, about
from tilesmith.lab.bench.measuring.timing import CACHES_FILLED, Rotation
from tilesmith.lab.bench.roofline.device_limits import Limits, gpu_limits
from tilesmith.lab.bench.roofline.floor import floor, work_of
from tilesmith.lab.judge.task import Task, Trial
from tilesmith.lab.judge.timing.clock import clocked
from tilesmith.lab.judge.timing.gpu_turns import alone_on_gpu
from tilesmith.lab.judge.timing.timed import on_device
from tilesmith.spec import called

REPLAYS = 10
MOST_SETS = 16
Sets = Callable[[int, int], tuple[dict[str, Any], list[Any]]]


class References:
    """Times of definitions, each taken once, and the limits of the GPU."""

    def __init__(self) -> None:
        self._times: dict[Any, float | None] = {}
        self._limits: Limits | None = None

    def facts(self, task: Task, trial: Trial, inputs: Sets, *, gradients: bool) -> dict[str, Any]:
        """Return the device, the definition's time, and the least time that the task's cost allows."""
        key = (task.name, repr(trial.case), trial.dtype, trial.layout.name, gradients)
        with alone_on_gpu(), _stopwatch() as stopwatch:
            if self._limits is None:
                self._limits = gpu_limits(stopwatch, about(), stopwatch.cache_bytes, anew=False)
            if key not in self._times:
                self._times[key] = _timed(stopwatch, task, inputs, gradients=gradients)
        work = work_of(task.spec, trial.case, trial.dtype, "both" if gradients else "fwd")
        least = None
        if work is not None:
            launch = (self._limits.launch_us or 0.0) / 1e3
            least = max(floor(work, self._limits, trial.dtype).ms, launch)
        return {"device": torch.cuda.get_device_name(), "reference_ms": self._times[key], "floor_ms": least}


@contextmanager
def _stopwatch() -> Iterator[GpuStopwatch]:
    """Yield a stopwatch, and return this thread to its stream afterwards."""
    stream = torch.cuda.current_stream()
    try:
        yield GpuStopwatch()
    finally:
        torch.cuda.synchronize()
        torch.cuda.set_stream(stream)


def _timed(stopwatch: GpuStopwatch, task: Task, inputs: Sets, *, gradients: bool) -> float | None:
    """Return the median time of the definition; None where it does not run on the GPU."""
    try:
        sets = [on_device(inputs(-1, 0), "cuda")]
        size = sum(one.nbytes for one in _tensors(sets[0]))
        count = max(2, min(MOST_SETS, CACHES_FILLED * stopwatch.cache_bytes // max(size, 1) + 1))
        sets += [on_device(inputs(-1, place), "cuda") for place in range(1, count)]
        runs = [_run(task, *one, gradients=gradients) for one in sets]
        times = clocked(
            stopwatch, runs, Rotation(count, clears=True), fresh=lambda number: None, wrong=lambda number: None,
            replays=REPLAYS,
        )  # fmt: skip
        return times.median_ms
    except Exception:
        return None
    finally:
        torch.cuda.empty_cache()


def _run(task: Task, inputs: dict[str, Any], cotangents: list[Any], *, gradients: bool) -> Callable[[], Any]:
    def forward() -> Any:
        with torch.no_grad():
            return called(task.spec.reference, inputs)

    def both() -> Any:
        leaves = {name: inputs[name].detach().requires_grad_() for name in task.spec.leaves(inputs)}
        with torch.enable_grad():
            made = called(task.spec.reference, {**inputs, **leaves})
        outputs = [made] if isinstance(made, torch.Tensor) else list(made)
        followed = [(one, weight) for one, weight in zip(outputs, cotangents, strict=True) if one.requires_grad]
        return torch.autograd.grad(
            [one for one, _ in followed], list(leaves.values()), [one for _, one in followed], allow_unused=True
        )

    return both if gradients else forward


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [one for part in parts for one in _tensors(part)]
