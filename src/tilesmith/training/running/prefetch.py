"""Batches on the device: a thread prepares them ahead of their steps, and each process takes its part."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from tilesmith.training.data.tasks import Batch, Task
from tilesmith.training.running.distributed import Place

STEPS_AHEAD = 64
"""The thread prepares the data of this many steps at once, while earlier steps run."""


class Prefetcher:
    """Returns the batches of a run, step after step from `first` on."""

    def __init__(self, task: Task, place: Place, batch_size: int, first: int) -> None:
        share = batch_size // place.processes
        self._task = task
        self._batch_size = batch_size
        self._share = slice(place.rank * share, (place.rank + 1) * share)
        self._device = place.device
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._steps = range(first, first)
        self._made: Batch = ()
        self._next = self._begin(first)

    def batch(self, step: int) -> Batch:
        """Return this process's part of a step's batch. Steps must be asked for in ascending order."""
        if step >= self._steps.stop:
            # This thread copies to the device, because it may also be capturing a CUDA graph.
            self._made = tuple(tensor.to(self._device) for tensor in self._next.result())
            self._steps = range(self._steps.stop, self._steps.stop + STEPS_AHEAD)
            self._next = self._begin(self._steps.stop)
        return tuple(tensor[step - self._steps.start] for tensor in self._made)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, first: int) -> Future[Batch]:
        return self._thread.submit(self._make, range(first, first + STEPS_AHEAD))

    def _make(self, steps: range) -> Batch:
        return tuple(tensor[:, self._share] for tensor in self._task.batches(steps, self._batch_size))
