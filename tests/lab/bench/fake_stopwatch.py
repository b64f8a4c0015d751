"""A stopwatch without a GPU: calls run, and the test sets their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilesmith.lab.bench.measuring.timing import Action, CaptureRefused


class FakeStopwatch:
    """Every call takes `call_ms` on the device and `host_ms` on the host; a captured graph costs the host nothing."""

    def __init__(
        self, call_ms: float | Callable[[], float] = 0.1, host_ms: float = 0.02, captures: bool = True
    ) -> None:
        self._call_ms = call_ms if callable(call_ms) else lambda: call_ms
        self._host_ms = host_ms
        self._captures = captures
        self._device_ms = 0.0
        self.now_ms = 0.0
        self.clears = 0
        self.captured: list[int] = []
        self._in_graph = False

    def spend(self) -> None:
        """Advance the clock by one call; timed functions call this outside graphs."""
        if not self._in_graph:
            self._device_ms += self._call_ms()
            self.now_ms += self._host_ms

    def capture(self, calls: Sequence[Action]) -> Action:
        if not self._captures:
            raise CaptureRefused("it waits for the device")
        self.captured.append(len(calls))

        def replay() -> None:
            self._in_graph = True
            for call in calls:
                call()
                self._device_ms += self._call_ms()
            self._in_graph = False

        return replay

    def milliseconds(self, action: Action, repetitions: int, before: Action) -> list[float]:
        times = []
        for _ in range(repetitions):
            before()
            self._device_ms = 0.0
            action()
            self.now_ms += self._device_ms
            times.append(self._device_ms)
        return times

    def clear_cache(self) -> None:
        self.clears += 1

    def synchronize(self) -> None:
        self.now_ms += self._device_ms
        self._device_ms = 0.0

    def seconds(self) -> float:
        return self.now_ms / 1e3
