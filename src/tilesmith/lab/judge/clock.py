"""A clock that a candidate cannot fool: new inputs before every timed replay, sampled outputs verified afterwards.

The clock times runs of a tape, not the candidate's process. Each run has its own input set, and together the sets are
larger than the L2 cache. Inputs change before each replay, outside the timed interval, so that no result of an earlier
replay, of the capture or of a cache is right. A wrong output in any sampled replay voids all times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from tilesmith.lab.bench.measuring.timing import Action, Rotation, Stopwatch

REPLAYS = 20
VERIFIED = 5


class Dishonest(Exception):
    """A timed replay gave wrong outputs; the message says which and how."""


@dataclass(frozen=True)
class Times:
    """Device time of one run in milliseconds: median and interquartile range, and how many replays were verified."""

    median_ms: float
    spread_ms: float
    replays: int
    verified: int

    def as_json(self) -> dict[str, float]:
        return {
            "median_ms": self.median_ms,
            "spread_ms": self.spread_ms,
            "replays": self.replays,
            "verified": self.verified,
        }


def clocked(
    stopwatch: Stopwatch,
    runs: Sequence[Action],
    rotated: Rotation,
    *,
    fresh: Callable[[int], None],
    wrong: Callable[[int], str | None],
    seed: int,
    replays: int = REPLAYS,
) -> Times:
    """Time runs that do the same work on their own input sets. Raises Dishonest, or CaptureRefused.

    `fresh(number)` puts new values into every input set. `wrong(number)` compares the outputs of all runs with the
    definition on these values, and returns what is wrong. Which replays are verified, nobody can predict.
    """
    if len(runs) < 2 and not rotated.clears:
        raise ValueError("clocked: one input set stays in the cache; give several, or clear the cache")
    chosen = set(random.Random(seed).sample(range(replays), min(VERIFIED, replays)))
    chosen |= {replays - 1}
    fresh(-1)
    for run in runs:
        run()
    stopwatch.synchronize()
    replay = stopwatch.capture(runs)  # one run for each input set
    times = []
    for number in range(replays):
        fresh(number)
        stopwatch.synchronize()
        before = stopwatch.clear_cache if rotated.clears else _nothing
        (milliseconds,) = stopwatch.milliseconds(replay, 1, before)
        stopwatch.synchronize()
        times.append(milliseconds / len(runs))
        if number in chosen:
            found = wrong(number)
            if found is not None:
                raise Dishonest(f"replay {number + 1} of {replays}: {found}")
    lower, _, upper = quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return Times(median(times), upper - lower, replays, len(chosen))


def _nothing() -> None:
    return None
