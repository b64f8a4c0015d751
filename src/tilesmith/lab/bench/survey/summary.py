"""What a survey says of each operator: quantiles of its speed, shares of cases, and the worst cases by name.

A *speed* is another provider's time divided by ours: 1.25 means that ours is a quarter faster. The forward and the
backward of a case count as two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.lab.bench.result import OURS
from tilesmith.lab.bench.survey.survey_result import AUTO

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95)
WITHIN = 0.03  # of PyTorch's time: as fast
BEHIND = 0.08
WITHIN_OF_BEST = 0.05
LARGE_BYTES = 64 << 20  # smaller cases are launch-bound, or fit in L2
OF_LIMIT = 0.85
WORST = 10
ALL = "all"  # the summary of all operators


@dataclass(frozen=True)
class Entry:
    """One direction of one case, with its speeds. A speed is None where one of the two times is missing."""

    op: str
    case: str
    mode: str
    dtype: str
    times: Mapping[str, float]
    chosen: str | None
    rival: str | None  # the fastest one
    beside_rival: float | None  # speed of ours
    beside_torch: float | None  # speed of ours
    auto_beside_torch: float | None
    of_limit: float | None  # share of the copy limit; None unless memory-bound and large

    @property
    def name(self) -> str:
        return f"{self.op} {self.case} {'forward' if self.mode == 'fwd' else 'backward'}"


@dataclass(frozen=True)
class Speeds:
    """The distribution of some speeds."""

    count: int
    geometric_mean: float
    quantiles: tuple[float, ...]  # at QUANTILES

    @classmethod
    def of(cls, speeds: Sequence[float]) -> Speeds | None:
        if not speeds:
            return None
        mean = math.exp(math.fsum(map(math.log, speeds)) / len(speeds))
        return cls(len(speeds), mean, tuple(quantile(speeds, share) for share in QUANTILES))


@dataclass(frozen=True)
class Summary:
    """What a survey says of one operator, or of all."""

    op: str
    entries: Sequence[Entry]
    wrong: Sequence[str]  # cases without a time of ours, and why
    beside_rival: Speeds | None
    auto_beside_torch: Speeds | None
    auto_as_fast: float | None  # share of cases in which `auto` is within 3 % of PyTorch or ahead
    auto_behind: float | None  # share of cases in which `auto` is more than 8 % behind PyTorch
    best_as_fast: float | None  # share of cases in which ours is within 5 % of the fastest rival or ahead
    at_limit: float | None  # share of large memory-bound cases at 85 % of the copy limit
    of_limit: Sequence[float]
    worst: Sequence[Entry]  # beside the fastest rival
    worst_auto: Sequence[Entry]  # `auto` beside PyTorch, where it is more than 3 % behind


def summaries(survey: Mapping[str, Any]) -> list[Summary]:
    """Return the summary of each operator, in order; after several, that of all."""
    cases = survey["cases"]
    ops = list(dict.fromkeys(case["op"] for case in cases))
    found = [summary(op, [case for case in cases if case["op"] == op]) for op in ops]
    return [*found, summary(ALL, cases)] if len(ops) > 1 else found


def summary(op: str, cases: Sequence[Mapping[str, Any]]) -> Summary:
    """Return the summary of some cases under a name."""
    found = [entry for case in cases for entry in entries(case)]
    beside_rival = [one.beside_rival for one in found if one.beside_rival is not None]
    auto = [one.auto_beside_torch for one in found if one.auto_beside_torch is not None]
    of_limit = [one.of_limit for one in found if one.of_limit is not None]
    return Summary(
        op=op,
        entries=found,
        wrong=[f"{case['op']} {case['name']}: {case['wrong']}" for case in cases if case["wrong"]],
        beside_rival=Speeds.of(beside_rival),
        auto_beside_torch=Speeds.of(auto),
        auto_as_fast=_share(speed >= 1 / (1 + WITHIN) for speed in auto),
        auto_behind=_share(speed < 1 / (1 + BEHIND) for speed in auto),
        best_as_fast=_share(speed >= 1 / (1 + WITHIN_OF_BEST) for speed in beside_rival),
        at_limit=_share(share >= OF_LIMIT for share in of_limit),
        of_limit=of_limit,
        worst=_worst(found, "beside_rival"),
        worst_auto=[one for one in _worst(found, "auto_beside_torch") if is_behind(one)],
    )


def entries(case: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the directions of a case that were timed."""
    for mode, direction in case["directions"].items():
        times = direction["device_ms"]
        ours, torchs, auto = times.get(OURS), times.get("torch"), times.get(AUTO)
        rivals = {name: ms for name, ms in times.items() if name not in (OURS, AUTO)}
        rival = min(rivals, key=lambda name: rivals[name], default=None)
        yield Entry(
            case["op"], case["name"], mode, case["drawn"]["dtype"], times, direction.get("auto"), rival,
            beside_rival=rivals[rival] / ours if rival and ours else None,
            beside_torch=torchs / ours if torchs and ours else None,
            auto_beside_torch=torchs / auto if torchs and auto else None,
            of_limit=_of_limit(direction, ours),
        )  # fmt: skip


def is_behind(one: Entry) -> bool:
    """Return whether `auto` is more than 3 % behind PyTorch."""
    return one.auto_beside_torch is not None and one.auto_beside_torch < 1 / (1 + WITHIN)


def _of_limit(direction: Mapping[str, Any], ours: float | None) -> float | None:
    """Return the share of the copy limit, where the case is memory-bound and moves enough bytes."""
    copy_ms, floor_ms = direction.get("copy_ms"), direction.get("floor_ms")
    if not ours or not copy_ms or not floor_ms or (direction.get("bytes") or 0) < LARGE_BYTES:
        return None
    memory_bound = floor_ms <= copy_ms  # else the flops take longer than the copy
    return copy_ms / ours if memory_bound else None


def _share(truths: Iterator[bool]) -> float | None:
    listed = list(truths)
    return sum(listed) / len(listed) if listed else None


def _worst(found: Sequence[Entry], speed: str) -> list[Entry]:
    known = [one for one in found if getattr(one, speed) is not None]
    return sorted(known, key=lambda one: float(getattr(one, speed)))[:WORST]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of all values lies, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
