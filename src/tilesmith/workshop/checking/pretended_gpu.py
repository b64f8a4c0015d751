"""A GPU with its own clock, so that programs that measure can be checked on any machine.

As on a real GPU, a launch returns before its work is done, the work of a stream runs in order, and events carry the
GPU's time. The times are given, so a measurement is right or wrong, and never depends on the machine's load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

LAUNCH_MS = 0.01


class PretendedGpu:
    """A host clock and the time at which the GPU will have done all work so far, in milliseconds."""

    def __init__(self) -> None:
        self.host = 0.0
        self.done_at = 0.0
        self.waits = 0
        self.events = 0

    def launch(self, milliseconds: float) -> None:
        """Queue work of this length."""
        self.host += LAUNCH_MS
        self.done_at = max(self.host, self.done_at) + milliseconds

    def synchronize(self, device: Any = None) -> None:
        """Let the host wait until all work is done."""
        self.waits += 1
        self.host = max(self.host, self.done_at)

    @contextmanager
    def in_torch(self) -> Iterator[PretendedGpu]:
        """Let `torch.cuda.Event` and `torch.cuda.synchronize` be those of this GPU."""

        def event(enable_timing: bool = False, **others: Any) -> _Event:
            return _Event(self, enable_timing)

        with (
            mock.patch.object(torch.cuda, "Event", event),
            mock.patch.object(torch.cuda, "synchronize", self.synchronize),
        ):
            yield self


class _Event:
    def __init__(self, gpu: PretendedGpu, timing: bool) -> None:
        self._gpu, self._timing = gpu, timing
        self._at: float | None = None
        gpu.events += 1

    def record(self, stream: Any = None) -> None:
        self._at = max(self._gpu.host, self._gpu.done_at)

    def query(self) -> bool:
        return self._at is None or self._at <= self._gpu.host

    def synchronize(self) -> None:
        self._gpu.waits += 1
        self._gpu.host = max(self._gpu.host, self._at or 0.0)

    def elapsed_time(self, end: _Event) -> float:
        """Return the milliseconds from this event to another. Raises the errors of torch.cuda.Event."""
        if not (self._timing and end._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end._at - self._at
