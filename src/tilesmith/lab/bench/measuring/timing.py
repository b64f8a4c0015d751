"""Device time, host time and wall time of a call.

Device time comes from replaying a CUDA graph of many calls: a graph has no launch gaps, which events around single
calls would count. The calls rotate over several input sets, larger than L2 together, so inputs come from HBM as in a
model. A graph holds one call for each input set: an operator that keeps its result during a capture must still do its
work once for each call that it is credited with. `Stopwatch` hides the GPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Protocol

from torch import Tensor

Outputs = tuple[Tensor, ...]
Call = Callable[[], Outputs]
Action = Callable[[], object]
Stir = Callable[[Iterable[int]], None]  # takes the places of input sets

CACHES_FILLED = 2  # size of all input sets in multiples of L2
MOST_SETS = 256
MOST_BYTES = 4 << 30  # of all input sets and outputs
SHORTEST_REPLAY_MS = 0.5  # makes the few µs of a graph launch negligible
LONGEST_REPLAY_MS = 50.0
USUAL_CALLS = 10
WARM_UP_SECONDS = 0.1
LONGEST_WARM_UP_SECONDS = 0.5
STEADY = 0.01
SAMPLING_MS = 80.0  # in each of the two rounds
LEAST_NOISE = 0.01  # between runs, clocks and addresses change times by this share


class CaptureRefused(Exception):
    """These calls cannot be captured in a graph; the message says why."""


class Stopwatch(Protocol):
    """The device functions that timing needs."""

    def capture(self, calls: Sequence[Action]) -> Action:
        """Return a function that replays these calls as one graph. Raises CaptureRefused."""

    def milliseconds(self, action: Action, repetitions: int, before: Action) -> list[float]:
        """Return the device time of each repetition, without the time of `before`."""

    def clear_cache(self) -> None:
        """Evict everything from L2."""

    def synchronize(self) -> None: ...

    def seconds(self) -> float:
        """Return the host's clock."""


@dataclass(frozen=True)
class Rotation:
    """The number of input sets. `clears`: all sets fit in L2, so L2 is cleared before each replay."""

    sets: int
    clears: bool = False

    @property
    def cold(self) -> bool:
        return self.sets > 1


def rotation(input_bytes: int, output_bytes: int, cache_bytes: int, *, warm: bool) -> Rotation:
    """Return how many input sets make the inputs come from HBM; one set where inputs may stay in cache."""
    if warm:
        return Rotation(1)
    wanted = CACHES_FILLED * cache_bytes // max(input_bytes, 1) + 1
    affordable = MOST_BYTES // max(input_bytes + output_bytes, 1)
    sets = max(2, min(wanted, affordable, MOST_SETS))
    return Rotation(sets, clears=sets * input_bytes <= CACHES_FILLED * cache_bytes)


@dataclass(frozen=True)
class Timing:
    """Times of one call. Two results that differ by less than the share `noise` are equal."""

    device_ms: float
    spread_ms: float  # interquartile range
    noise: float
    samples: int
    method: str
    host_us: float
    wall_ms: float


@dataclass(frozen=True)
class Measured:
    """The times, and the outputs of the last timed call on each input set."""

    timing: Timing
    outputs: list[Outputs]


def measure(
    stopwatch: Stopwatch,
    calls: Sequence[Call],
    rotated: Rotation,
    refresh: Callable[[], None] = lambda: None,
    stir: Stir = lambda places: None,
) -> Measured:
    """Time calls that do the same work on different inputs.

    Two rounds are timed; their difference gives the noise. `refresh` runs between them and may change the inputs: the
    outputs are those of the second round, so a result cached in the first is detected. `stir` runs before every timed
    replay and may change the input sets of its calls a little: a kernel that finds its inputs unchanged could skip its
    work.
    """
    for call in calls:
        call()
    stopwatch.synchronize()
    run = _prepared(stopwatch, calls, rotated, stir)
    first = _sampled(stopwatch, run, WARM_UP_SECONDS)
    refresh()
    second = _sampled(stopwatch, run, WARM_UP_SECONDS / 4)
    outputs = [output for output in run.outputs if output is not None]
    both = first + second
    middle, spread = median(both), max(_spread(first), _spread(second))
    noise = max(abs(median(first) - median(second)) / middle, spread / middle, LEAST_NOISE)
    host_us, wall_ms = _host_us(stopwatch, calls, middle), _wall_ms(stopwatch, calls, middle)
    return Measured(Timing(middle, spread, noise, len(both), run.method, host_us, wall_ms), outputs)


def device_milliseconds(stopwatch: Stopwatch, calls: Sequence[Call], rotated: Rotation) -> float:
    """Return the median device time of one call, by a single round of what `measure` does."""
    for call in calls:
        call()
    stopwatch.synchronize()
    return median(_sampled(stopwatch, _prepared(stopwatch, calls, rotated), WARM_UP_SECONDS / 4))


@dataclass(frozen=True)
class _Run:
    action: Action
    calls: int
    before: Action
    method: str
    outputs: list[Outputs | None]


def _prepared(stopwatch: Stopwatch, calls: Sequence[Call], rotated: Rotation, stir: Stir = lambda places: None) -> _Run:
    outputs: list[Outputs | None] = [None] * len(calls)

    def recording(place: int) -> Action:
        def call() -> None:
            outputs[place] = None  # frees the memory for the new result
            outputs[place] = calls[place]()

        return call

    recorded = [recording(place) for place in range(len(calls))]
    places = deque(range(len(calls)))

    def prepare() -> None:
        stir(places)
        if rotated.clears:
            stopwatch.clear_cache()

    def prepare_next() -> None:
        stir([places[0]])  # the outputs of other sets must stay those of their inputs
        if rotated.cold:
            stopwatch.clear_cache()

    def call_next() -> None:
        recorded[places[0]]()
        places.rotate(-1)

    cache = "inputs from HBM" if rotated.cold else "inputs in L2"
    try:
        once = stopwatch.capture(recorded)
        estimate = median(stopwatch.milliseconds(once, 3, prepare)) / len(calls)
        rounds = 1 if rotated.clears else math.ceil(calls_wanted(estimate) / len(calls))
        return _Run(_repeated(once, rounds), rounds * len(calls), prepare, f"graph replay, {cache}", outputs)
    except CaptureRefused as refusal:
        return _Run(call_next, 1, prepare_next, f"events, {cache} (no graph: {refusal})", outputs)


def _repeated(replay: Action, rounds: int) -> Action:
    def repeat() -> None:
        for _ in range(rounds):
            replay()

    return replay if rounds == 1 else repeat


def calls_wanted(call_ms: float) -> int:
    """Return how many calls one sample holds: ten, more for short calls, fewer for long ones."""
    call_ms = max(call_ms, 1e-4)
    return max(math.ceil(SHORTEST_REPLAY_MS / call_ms), min(USUAL_CALLS, math.ceil(LONGEST_REPLAY_MS / call_ms)))


def _sampled(stopwatch: Stopwatch, run: _Run, warm_up_seconds: float) -> list[float]:
    """Return times per call, after a warm-up until times are steady."""
    started, last = stopwatch.seconds(), math.inf
    while True:
        current = median(stopwatch.milliseconds(run.action, 5, run.before))
        elapsed = stopwatch.seconds() - started
        steady = abs(current - last) <= STEADY * current
        if (steady and elapsed >= warm_up_seconds) or elapsed >= LONGEST_WARM_UP_SECONDS:
            break
        last = current
    # Without a graph one action is one call: every input set needs its repetition.
    fewest = max(7, len(run.outputs) if run.calls == 1 else 0)
    repetitions = max(fewest, min(100, math.ceil(SAMPLING_MS / current)))
    return [time / run.calls for time in stopwatch.milliseconds(run.action, repetitions, run.before)]


def _host_us(stopwatch: Stopwatch, calls: Sequence[Call], device_ms: float) -> float:
    """Return the host time of one call without waiting for the device: the best of five rounds."""
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
    """Return the median time from the call to the finished result."""
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
