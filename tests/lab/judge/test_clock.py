"""The judge's clock with a stand-in for the GPU: new inputs for each replay, wrong outputs void the times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tilesmith.lab.bench.measuring.timing import Rotation, measure
from tilesmith.lab.judge.timing.clock import Dishonest, clocked


class StandIn:
    """A GPU on which each call takes as long as the work it does; a graph replays the work of its capture."""

    def __init__(self) -> None:
        self.now = 0.0
        self.capturing: list[Callable[[], None]] | None = None
        self.captured: list[int] = []

    def work(self, action: Callable[[], None], milliseconds: float) -> None:
        def do() -> None:
            action()
            self.now += milliseconds

        if self.capturing is None:
            do()
        else:
            self.capturing.append(do)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        self.capturing = []
        for call in calls:
            call()
        graph, self.capturing = self.capturing, None
        self.captured.append(len(calls))

        def replay() -> None:
            for one in graph:
                one()

        return replay

    def milliseconds(self, action: Callable[[], object], repetitions: int, before: Callable[[], object]) -> list[float]:
        times = []
        for _ in range(repetitions):
            before()
            started = self.now
            action()
            times.append(self.now - started)
        return times

    def clear_cache(self) -> None: ...

    def synchronize(self) -> None: ...

    def seconds(self) -> float:
        self.now += 1e-3
        return self.now


class Doubling:
    """Doubles a number for each input set. `skips` says when a call does no work."""

    def __init__(self, gpu: StandIn, sets: int, skips: Callable[[int], bool]) -> None:
        self.inputs, self.outputs = [0.0] * sets, [0.0] * sets
        self.runs = [self._run(gpu, place, skips) for place in range(sets)]

    def _run(self, gpu: StandIn, place: int, skips: Callable[[int], bool]) -> Callable[[], None]:
        def compute() -> None:
            self.outputs[place] = 2 * self.inputs[place]

        return lambda: None if skips(place) else gpu.work(compute, 1.0)

    def fresh(self, number: int) -> None:
        self.inputs = [100.0 * number + place for place in range(len(self.inputs))]

    def wrong(self, number: int) -> str | None:
        return None if self.outputs == [2 * one for one in self.inputs] else f"outputs are {self.outputs}"


def test_honest_runs_get_their_time() -> None:
    gpu = StandIn()
    work = Doubling(gpu, 3, lambda place: False)
    times = clocked(gpu, work.runs, Rotation(3), fresh=work.fresh, wrong=work.wrong)
    assert times.median_ms == pytest.approx(1.0)
    assert times.method == "graph replay"


def test_work_once_per_capture_is_refused() -> None:
    gpu = StandIn()
    work = Doubling(gpu, 3, lambda place: gpu.capturing is not None and place > 0)
    with pytest.raises(Dishonest, match="replay"):
        clocked(gpu, work.runs, Rotation(3), fresh=work.fresh, wrong=work.wrong)


def test_work_before_the_capture_is_refused() -> None:
    gpu = StandIn()
    work = Doubling(gpu, 3, lambda place: gpu.capturing is not None)
    with pytest.raises(Dishonest):
        clocked(gpu, work.runs, Rotation(3), fresh=work.fresh, wrong=work.wrong)


def test_one_input_set_is_refused_unless_the_cache_is_cleared() -> None:
    gpu = StandIn()
    work = Doubling(gpu, 1, lambda place: False)
    with pytest.raises(ValueError, match="one input set"):
        clocked(gpu, work.runs, Rotation(1), fresh=work.fresh, wrong=work.wrong)


def test_bench_credits_no_call_that_a_capture_skips() -> None:
    """An operator that keeps its result for each input set of a capture was credited five calls for one."""
    gpu = StandIn()
    kept: set[int] = set()
    inputs = [0, 1]

    def call(place: int) -> Callable[[], tuple[()]]:
        def run() -> tuple[()]:
            if gpu.capturing is None:
                kept.clear()
            if gpu.capturing is None or place not in kept:
                gpu.work(lambda: None, 1.0)
            kept.add(place)
            return ()

        return run

    class Forgetting(StandIn):
        def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
            kept.clear()  # each graph computes once for each input set
            return super().capture(calls)

    gpu.__class__ = Forgetting
    measured = measure(gpu, [call(place) for place in inputs], Rotation(2))
    assert measured.timing.device_ms == pytest.approx(1.0)
    assert set(gpu.captured) == {2}
