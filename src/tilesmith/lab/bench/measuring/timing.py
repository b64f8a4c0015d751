"""How long a call takes: on the device, on the host, and from start to end.

Device time comes from replaying a CUDA graph of many calls: launches inside a graph leave no gaps, which events around
single calls would count. The calls go round several sets of inputs, more than the L2 cache holds, so that inputs come
from memory as they do in a model. What needs a GPU is behind `Stopwatch`; the rest is arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles
from typing import Protocol

from torch import Tensor

Outputs = tuple[Tensor, ...]
Call = Callable[[], Outputs]
Action = Callable[[], object]

CACHES_FILLED = 2  # the sets together hold this many times what the L2 cache does
MOST_SETS = 256
MOST_BYTES = 4 << 30  # for all sets and their results
SHORTEST_REPLAY_MS = 0.5  # the launch of a graph, a few µs, disappears in it
LONGEST_REPLAY_MS = 50.0
USUAL_CALLS = 10
WARM_UP_SECONDS = 0.1
LONGEST_WARM_UP_SECONDS = 0.5
STEADY = 0.01
SAMPLING_MS = 80.0  # in each of two rounds
LEAST_NOISE = 0.01  # clocks and addresses move times by this much even where one run repeats itself exactly


class CaptureRefused(Exception):
    """These calls cannot be captured in a graph; the message says why."""


class Stopwatch(Protocol):
    """What timing needs of a device."""

    def capture(self, calls: Sequence[Action]) -> Action:
        """A graph of these calls; calling it replays them. Raises CaptureRefused."""

    def milliseconds(self, action: Action, repetitions: int, before: Action) -> list[float]:
        """Device time of each repetition, without that of what comes before it."""

    def clear_cache(self) -> None:
        """Push everything out of L2."""

    def synchronize(self) -> None: ...

    def seconds(self) -> float:
        """The host's clock."""


@dataclass(frozen=True)
class Rotation:
    """How many sets of inputs calls go round. `clears`: all of them fit in L2, so it is cleared before each replay."""

    sets: int
    clears: bool = False

    @property
    def cold(self) -> bool:
        return self.sets > 1


def rotation(input_bytes: int, output_bytes: int, cache_bytes: int, *, warm: bool) -> Rotation:
    """Enough sets for the inputs to come from memory, few enough to fit there. One set where they may stay in cache."""
    if warm:
        return Rotation(1)
    wanted = CACHES_FILLED * cache_bytes // max(input_bytes, 1) + 1
    affordable = MOST_BYTES // max(input_bytes + output_bytes, 1)
    sets = max(2, min(wanted, affordable, MOST_SETS))
    return Rotation(sets, clears=sets * input_bytes <= CACHES_FILLED * cache_bytes)


@dataclass(frozen=True)
class Timing:
    """Times of one call. `noise` is a share: two results that differ by less of it are equal."""

    device_ms: float
    spread_ms: float  # between the quartiles
    noise: float
    samples: int
    method: str
    host_us: float
    wall_ms: float


@dataclass(frozen=True)
class Measured:
    """The times, and what the last timed call on each set of inputs returned."""

    timing: Timing
    outputs: list[Outputs]


def measure(
    stopwatch: Stopwatch, calls: Sequence[Call], rotated: Rotation, refresh: Callable[[], None] = lambda: None
) -> Measured:
    """Time calls that do the same work on different inputs.

    Everything is timed twice, which gives the noise. `refresh` runs in between and may put new values into the inputs:
    outputs are those of the second time, so that a result kept from the first does not pass for a new one.
    """
    for call in calls:
        call()
    stopwatch.synchronize()
    run = _prepared(stopwatch, calls, rotated)
    first = _sampled(stopwatch, run, WARM_UP_SECONDS)
    refresh()
    second = _sampled(stopwatch, run, WARM_UP_SECONDS / 4)
    outputs = [output for output in run.outputs if output is not None]
    both = first + second
    middle, spread = median(both), max(_spread(first), _spread(second))
    noise = max(abs(median(first) - median(second)) / middle, spread / middle, LEAST_NOISE)
    host_us, wall_ms = _host_us(stopwatch, calls, middle), _wall_ms(stopwatch, calls, middle)
    return Measured(Timing(middle, spread, noise, len(both), run.method, host_us, wall_ms), outputs)


@dataclass(frozen=True)
class _Run:
    action: Action
    calls: int
    before: Action
    method: str
    outputs: list[Outputs | None]


def _prepared(stopwatch: Stopwatch, calls: Sequence[Call], rotated: Rotation) -> _Run:
    outputs: list[Outputs | None] = [None] * len(calls)

    def recording(place: int) -> Action:
        def call() -> None:
            outputs[place] = None  # so that the new result may take the old one's place
            outputs[place] = calls[place]()

        return call

    recorded = [recording(place) for place in range(len(calls))]
    before = stopwatch.clear_cache if rotated.clears else _nothing
    cache = "inputs from HBM" if rotated.cold else "inputs in L2"
    try:
        once = stopwatch.capture(recorded)
        estimate = median(stopwatch.milliseconds(once, 3, before)) / len(calls)
        rounds = 1 if rotated.clears else math.ceil(calls_wanted(estimate) / len(calls))
        replay = once if rounds == 1 else stopwatch.capture(recorded * rounds)
        return _Run(replay, rounds * len(calls), before, f"graph replay, {cache}", outputs)
    except CaptureRefused as refusal:
        turns = cycle(recorded)
        before = stopwatch.clear_cache if rotated.cold else _nothing
        return _Run(lambda: next(turns)(), 1, before, f"events, {cache} (no graph: {refusal})", outputs)


def calls_wanted(call_ms: float) -> int:
    """How many calls a graph should hold: ten, more of short ones, fewer of long ones."""
    call_ms = max(call_ms, 1e-4)
    return max(math.ceil(SHORTEST_REPLAY_MS / call_ms), min(USUAL_CALLS, math.ceil(LONGEST_REPLAY_MS / call_ms)))


def _sampled(stopwatch: Stopwatch, run: _Run, warm_up_seconds: float) -> list[float]:
    """Times per call, after warming up until clocks are steady."""
    started, last = stopwatch.seconds(), math.inf
    while True:
        current = median(stopwatch.milliseconds(run.action, 5, run.before))
        elapsed = stopwatch.seconds() - started
        steady = abs(current - last) <= STEADY * current
        if (steady and elapsed >= warm_up_seconds) or elapsed >= LONGEST_WARM_UP_SECONDS:
            break
        last = current
    # Without a graph one action is one call: few repetitions would leave sets of inputs out.
    fewest = max(7, len(run.outputs) if run.calls == 1 else 0)
    repetitions = max(fewest, min(100, math.ceil(SAMPLING_MS / current)))
    return [time / run.calls for time in stopwatch.milliseconds(run.action, repetitions, run.before)]


def _host_us(stopwatch: Stopwatch, calls: Sequence[Call], device_ms: float) -> float:
    """What one call costs the host, which does not wait for the device: the best of several repetitions."""
    number = max(3, min(50, math.ceil(LONGEST_REPLAY_MS / max(device_ms, 1e-4))))
    best = math.inf
    for _ in range(5):
        stopwatch.synchronize()
        started = stopwatch.seconds()
        for turn in range(number):
            calls[turn % len(calls)]()
        best = min(best, (stopwatch.seconds() - started) / number)
    stopwatch.synchronize()
    return best * 1e6


def _wall_ms(stopwatch: Stopwatch, calls: Sequence[Call], device_ms: float) -> float:
    """From the call until its result is there."""
    times = []
    for turn in range(max(3, min(20, math.ceil(LONGEST_REPLAY_MS / max(device_ms, 1e-4))))):
        stopwatch.synchronize()
        started = stopwatch.seconds()
        calls[turn % len(calls)]()
        stopwatch.synchronize()
        times.append(stopwatch.seconds() - started)
    return median(times) * 1e3


def _spread(times: Sequence[float]) -> float:
    lower, _, upper = quantiles(times, n=4)
    return upper - lower


def _nothing() -> None:
    return None
