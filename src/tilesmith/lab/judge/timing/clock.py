"""A clock that a candidate cannot fool: new inputs before every timed replay, outputs looked at after it.

The clock times runs of a tape, not the candidate's process. Each run has its own input set, and together the sets are
larger than the L2 cache, or the cache is cleared. Inputs change before each replay, outside the timed interval, so that
no result of an earlier replay, of the capture or of a cache is right. A wrong output voids all times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from tilesmith.lab.bench.measuring.timing import Action, CaptureRefused, Rotation, Stopwatch

REPLAYS = 20
VERIFIED = 8
"""Compared with the definition. A kernel that skips three calls in ten escapes with a probability of 0.06."""


class Dishonest(Exception):
    """A timed replay gave wrong outputs; the message says which and how."""


@dataclass(frozen=True)
class Times:
    """Device time of one run in milliseconds: median and interquartile range."""

    median_ms: float
    spread_ms: float
    replays: int
    method: str


def sampled(seed: int, sets: int, replays: int = REPLAYS) -> list[tuple[int, int]]:
    """Return the replays and input sets whose outputs are compared; the last replay is one of them."""
    chance = random.Random(seed)
    chosen = {*chance.sample(range(replays - 1), min(VERIFIED, replays) - 1), replays - 1}
    return [(number, chance.randrange(sets)) for number in sorted(chosen)]


def clocked(
    stopwatch: Stopwatch,
    runs: Sequence[Action],
    rotated: Rotation,
    *,
    fresh: Callable[[int], None],
    wrong: Callable[[int], str | None],
    replays: int = REPLAYS,
) -> Times:
    """Time runs that do the same work on their own input sets. Raises Dishonest.

    `fresh(number)` puts new values into every input set, and poison into the memory of results. `wrong(number)` looks
    at the outputs of a replay after its time is taken, and returns what is wrong. Runs that no graph can hold are timed
    one after another, and then gaps between their launches count.
    """
    if len(runs) < 2 and not rotated.clears:
        raise ValueError("clocked: one input set stays in the cache; give several, or clear the cache")
    fresh(-1)
    for run in runs:
        run()
    stopwatch.synchronize()
    method = "graph replay"
    try:
        replay = stopwatch.capture(runs)  # one run for each input set
    except CaptureRefused as refusal:
        replay, method = _in_turn(runs), f"events (no graph: {refusal})"
    before = stopwatch.clear_cache if rotated.clears else _nothing
    times = []
    for number in range(replays):
        fresh(number)
        stopwatch.synchronize()
        (milliseconds,) = stopwatch.milliseconds(replay, 1, before)
        stopwatch.synchronize()
        times.append(milliseconds / len(runs))
        found = wrong(number)
        if found is not None:
            raise Dishonest(f"replay {number + 1} of {replays}: {found}")
    lower, _, upper = quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return Times(median(times), upper - lower, replays, method)


def _in_turn(runs: Sequence[Action]) -> Action:
    def replay() -> None:
        for run in runs:
            run()

    return replay


def _nothing() -> None:
    return None
