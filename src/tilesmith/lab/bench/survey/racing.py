"""Device times of several providers on the same inputs.

The calls of each provider are captured in one CUDA graph that goes round all input sets. The graphs are replayed in
turn, round after round, so that a change of the clock meets all providers alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles

from tilesmith.lab.bench.measuring.timing import Action, Call, CaptureRefused, Outputs, Rotation, Stopwatch

ROUNDS = 5
REPLAYS = 3  # kept in each round; one more before them fills the queue, so that no launch is waited for
SHORTEST_REPLAY_MS = 0.5  # makes the few µs of a graph launch negligible
LONG_REPLAY_MS = 10.0  # a longer replay is timed alone
WARM_UP_MS = 10.0
MOST_SETS = 32
MOST_BYTES = 8 << 30  # of all input sets
ENOUGH_CACHES = 8  # a set of this many times L2 comes from memory at every call


@dataclass(frozen=True)
class Time:
    """Device time of one call in ms: the median, and the distance between the quartiles as a share of the median."""

    device_ms: float
    noise: float
    method: str


@dataclass(frozen=True)
class Runner:
    """One provider, ready to be replayed. `replay_ms` is a first estimate."""

    action: Action
    calls: int
    before: Action
    replay_ms: float
    method: str


def sets_wanted(input_bytes: int, cache_bytes: int) -> Rotation:
    """Return how many input sets make the inputs come from memory."""
    if input_bytes >= ENOUGH_CACHES * cache_bytes:
        return Rotation(1)
    wanted = 2 * cache_bytes // max(input_bytes, 1) + 1
    sets = max(2, min(wanted, MOST_SETS, MOST_BYTES // max(input_bytes, 1)))
    return Rotation(sets, clears=sets * input_bytes <= 2 * cache_bytes)


def prepared(stopwatch: Stopwatch, calls: Sequence[Call], rotated: Rotation, *, keep: bool) -> Runner:
    """Capture the calls. With `keep` each call has memory of its own for its outputs.

    Where calls cannot be captured, events around single calls time them, with L2 cleared before each.
    """
    outputs: list[Outputs | None] = [None] * len(calls)

    def recording(place: int) -> Action:
        def call() -> None:
            outputs[place] = None  # frees the memory for the new result
            made = calls[place]()
            if keep:
                outputs[place] = made

        return call

    recorded = [recording(place) for place in range(len(calls))]
    for call in recorded:
        call()
    stopwatch.synchronize()
    before = stopwatch.clear_cache if rotated.clears else _nothing
    try:
        once = stopwatch.capture(recorded)
        estimate = min(stopwatch.milliseconds(once, 2, before))
        rounds = 1 if rotated.clears else math.ceil(SHORTEST_REPLAY_MS / max(estimate, 1e-4))
        replay = once if rounds == 1 else stopwatch.capture(recorded * rounds)
        return Runner(replay, rounds * len(calls), before, rounds * estimate, "graph replay")
    except CaptureRefused as refusal:
        turns = cycle(recorded)
        one = Runner(lambda: next(turns)(), 1, stopwatch.clear_cache, 0.0, f"events (no graph: {refusal})")
        estimate = min(stopwatch.milliseconds(one.action, 3, one.before))
        return Runner(one.action, 1, one.before, estimate, one.method)


def timed(stopwatch: Stopwatch, runners: Mapping[str, Runner]) -> dict[str, Time]:
    """Return the device time of one call of each provider."""
    samples: dict[str, list[float]] = {name: [] for name in runners}
    for runner in runners.values():
        repetitions = min(20, math.ceil(WARM_UP_MS / max(runner.replay_ms, 1e-3)))
        stopwatch.milliseconds(runner.action, repetitions, runner.before)
    longest = max((runner.replay_ms for runner in runners.values()), default=0.0)
    for _ in range(ROUNDS if longest < LONG_REPLAY_MS else 3):
        for name, runner in runners.items():
            kept = REPLAYS if runner.replay_ms < LONG_REPLAY_MS else 1
            replays = stopwatch.milliseconds(runner.action, kept + (kept > 1), runner.before)
            samples[name] += [one / runner.calls for one in replays[-kept:]]
    return {name: _time(samples[name], runner.method) for name, runner in runners.items()}


def _time(samples: Sequence[float], method: str) -> Time:
    middle = median(samples)
    lower, _, upper = quantiles(samples, n=4)
    return Time(middle, (upper - lower) / middle if middle else 0.0, method)


def _nothing() -> None:
    return None
