"""Batches on their way to the device: made ahead of the step that needs them, and this process's share of each."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from tilesmith.training.distributed import Place
from tilesmith.training.steps import Batch
from tilesmith.training.tasks import Task

AT_ONCE = 64
"""Steps whose data are made together, while the steps before them run."""


class Feed:
    """The batches of a run, step after step from `first` on."""

    def __init__(self, task: Task, place: Place, batch_size: int, first: int) -> None:
        share = batch_size // place.processes
        self._task = task
        self._batch_size = batch_size
        self._share = slice(place.rank * share, (place.rank + 1) * share)
        self._device = place.device
        self._maker = ThreadPoolExecutor(1, "feed")
        self._steps = range(first, first)
        self._made: Batch = ()
        self._next = self._begin(first)

    def batch(self, step: int) -> Batch:
        """The share of a step. Steps may be asked for in ascending order only."""
        if step >= self._steps.stop:
            # Copied by this thread, not by the one that made them: it may be capturing a graph meanwhile.
            self._made = tuple(tensor.to(self._device) for tensor in self._next.result())
            self._steps = range(self._steps.stop, self._steps.stop + AT_ONCE)
            self._next = self._begin(self._steps.stop)
        return tuple(tensor[step - self._steps.start] for tensor in self._made)

    def close(self) -> None:
        self._maker.shutdown(wait=False, cancel_futures=True)

    def _begin(self, first: int) -> Future[Batch]:
        return self._maker.submit(self._make, range(first, first + AT_ONCE))

    def _make(self, steps: range) -> Batch:
        return tuple(tensor[:, self._share] for tensor in self._task.batches(steps, self._batch_size))
