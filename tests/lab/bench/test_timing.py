"""Timing with a fake stopwatch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_stopwatch import FakeStopwatch
from torch import Tensor

from tilesmith.lab.bench.measuring.timing import (
    CACHES_FILLED,
    Call,
    Outputs,
    Rotation,
    calls_wanted,
    device_milliseconds,
    measure,
    rotation,
)

CACHE = 50 << 20


def calls(stopwatch: FakeStopwatch, number: int) -> list[Call]:
    def call(place: int) -> Callable[[], tuple[Tensor, ...]]:
        def computed() -> tuple[Tensor, ...]:
            stopwatch.spend()
            return (torch.tensor(place),)

        return computed

    return [call(place) for place in range(number)]


def test_input_sets_together_exceed_the_cache() -> None:
    for input_bytes in (1 << 20, 2 << 20, 33 << 20, 200 << 20):
        rotated = rotation(input_bytes, input_bytes, CACHE, warm=False)
        assert rotated.sets >= 2
        assert rotated.sets * input_bytes > CACHES_FILLED * CACHE
        assert not rotated.clears


def test_inputs_too_small_to_fill_the_cache_have_it_cleared() -> None:
    rotated = rotation(64, 64, CACHE, warm=False)
    assert rotated.clears
    assert rotated.sets <= 256


def test_huge_inputs_still_come_in_two_sets() -> None:
    assert rotation(20 << 30, 20 << 30, CACHE, warm=False) == Rotation(2)


def test_warm_keeps_one_set() -> None:
    assert rotation(1 << 20, 1 << 20, CACHE, warm=True) == Rotation(1)


@pytest.mark.parametrize(("call_ms", "wanted"), [(0.002, 250), (0.1, 10), (1.0, 10), (20.0, 3), (1000.0, 1)])
def test_a_graph_holds_more_of_shorter_calls(call_ms: float, wanted: int) -> None:
    assert calls_wanted(call_ms) == wanted


def test_device_time_is_per_call() -> None:
    stopwatch = FakeStopwatch(call_ms=0.1)
    timing = measure(stopwatch, calls(stopwatch, 4), Rotation(4)).timing
    assert timing.device_ms == pytest.approx(0.1)
    assert timing.spread_ms == pytest.approx(0.0, abs=1e-9)
    assert timing.method == "graph replay, inputs from HBM"
    assert timing.samples >= 14
    assert stopwatch.captured[-1] == 4, "a graph holds one call for each set of inputs"
    assert stopwatch.clears == 0


def test_noise_is_the_difference_of_two_rounds() -> None:
    slow = False
    stopwatch = FakeStopwatch(call_ms=lambda: 0.11 if slow else 0.1)

    def becomes_slower() -> None:
        nonlocal slow
        slow = True

    timing = measure(stopwatch, calls(stopwatch, 2), Rotation(2), becomes_slower).timing
    assert timing.noise >= 0.09


def test_noise_has_a_minimum() -> None:
    stopwatch = FakeStopwatch()
    assert measure(stopwatch, calls(stopwatch, 2), Rotation(2)).timing.noise == 0.01


def test_warms_up_until_times_are_steady() -> None:
    made = 0

    def call_ms() -> float:
        nonlocal made
        made += 1
        return 0.1 if made > 2000 else 0.05  # the clock boosts at first

    stopwatch = FakeStopwatch(call_ms)
    timing = measure(stopwatch, calls(stopwatch, 2), Rotation(2)).timing
    assert timing.device_ms == pytest.approx(0.1)


def test_without_a_graph_calls_are_timed_with_a_cleared_cache() -> None:
    stopwatch = FakeStopwatch(call_ms=0.1, captures=False)
    measured = measure(stopwatch, calls(stopwatch, 40), Rotation(40))
    assert measured.timing.method == "events, inputs from HBM (no graph: it waits for the device)"
    assert measured.timing.device_ms == pytest.approx(0.1)
    assert stopwatch.clears > measured.timing.samples
    assert len(measured.outputs) == 40, "every set of inputs has had its turn"


def test_small_inputs_are_cleared_from_the_cache_before_each_replay() -> None:
    stopwatch = FakeStopwatch(call_ms=0.002)
    measured = measure(stopwatch, calls(stopwatch, 256), Rotation(256, clears=True))
    assert stopwatch.captured == [256]
    assert stopwatch.clears > measured.timing.samples


def test_host_time_excludes_and_wall_time_includes_the_device() -> None:
    stopwatch = FakeStopwatch(call_ms=0.1, host_ms=0.02)
    timing = measure(stopwatch, calls(stopwatch, 2), Rotation(2)).timing
    assert timing.host_us == pytest.approx(20.0)
    assert timing.wall_ms == pytest.approx(0.12)


def test_outputs_come_from_the_round_after_the_refresh() -> None:
    stopwatch = FakeStopwatch()
    value = 1

    def call() -> tuple[Tensor, ...]:
        stopwatch.spend()
        return (torch.tensor(value),)

    def refresh() -> None:
        nonlocal value
        value = 2

    assert int(measure(stopwatch, [call], Rotation(1), refresh).outputs[0][0]) == 2


def test_device_milliseconds_is_the_time_that_measure_finds() -> None:
    stopwatch = FakeStopwatch(call_ms=0.1)

    def call() -> Outputs:
        stopwatch.spend()
        return ()

    assert device_milliseconds(stopwatch, [call], Rotation(1)) == pytest.approx(0.1)
    assert measure(stopwatch, [call], Rotation(1)).timing.device_ms == pytest.approx(0.1)
