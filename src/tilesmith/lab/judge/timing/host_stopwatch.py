"""A stopwatch without a GPU, so that the whole path of a time can run anywhere. Its times mean nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tilesmith.lab.bench.measuring.timing import Action


class HostStopwatch:
    """Runs calls at once, and measures the host's time."""

    cache_bytes = 1 << 10

    def capture(self, calls: Sequence[Action]) -> Action:
        def replay() -> None:
            for call in calls:
                call()

        return replay

    def milliseconds(self, action: Action, repetitions: int, before: Action) -> list[float]:
        times = []
        for _ in range(repetitions):
            before()
            started = time.perf_counter()
            action()
            times.append((time.perf_counter() - started) * 1e3)
        return times

    def clear_cache(self) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def seconds(self) -> float:
        return time.perf_counter()
