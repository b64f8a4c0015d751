"""The summary of a recording: time by kernel, launch overhead, busy share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilesmith.lab.report.content import Block, Cell, Column, Facts, Points, Table
from tilesmith.lab.report.number_format import in_time

SHOWN = 15
_NAME_WIDTH = 60


class ProfileError(Exception):
    """Profiling is not possible. The message is one line for the user."""


@dataclass(frozen=True)
class Entry:
    """All calls of one kernel or CPU operator. None marks figures that the tool does not report."""

    name: str
    calls: int
    total_us: float
    tb_per_s: float | None = None
    memory_percent: float | None = None
    compute_percent: float | None = None
    occupancy_percent: float | None = None


@dataclass(frozen=True)
class Summary:
    """`launch_us` is the host time per launch; `busy_percent` the share of time with a running kernel."""

    what: str
    entries: Sequence[Entry]
    launches: int | None = None
    launch_us: float | None = None
    busy_percent: float | None = None
    notes: Sequence[str] = ()
    files: Sequence[tuple[str, str]] = field(default_factory=list)
    """Paths of the recordings, each with the way to open it."""


def busy_percent(intervals: Iterable[tuple[float, float]]) -> float | None:
    """Return the busy share of the time between the first start and the last end."""
    ordered = sorted(intervals)
    if not ordered:
        return None
    covered, reached = 0.0, ordered[0][0]
    for start, end in ordered:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    span = reached - ordered[0][0]
    return 100 * covered / span if span else None


def blocks(summary: Summary) -> list[Block]:
    """Return the summary as content, most important part first."""
    total = sum(entry.total_us for entry in summary.entries)
    facts = {f"Time in {summary.what}": in_time(total)} if summary.entries else {}
    if summary.busy_percent is not None:
        facts["Busy"] = f"{summary.busy_percent:.0f} % of the time from the first kernel to the last"
    if summary.launches is not None:
        facts["Launches"] = f"{summary.launches:,}"
    if summary.launch_us is not None:
        facts["Launch overhead"] = f"{summary.launch_us:.1f} µs of host time per launch"
    found: list[Block] = [Facts(facts), _table(summary, total)] if summary.entries else []
    if summary.notes:
        found.append(Points(summary.notes))
    return found


def _table(summary: Summary, total: float) -> Table:
    entries = sorted(summary.entries, key=lambda entry: -entry.total_us)
    known = [
        (heading, name, unit)
        for heading, name, unit in (
            ("TB/s", "tb_per_s", ""), ("memory", "memory_percent", " %"), ("compute", "compute_percent", " %"),
            ("occupancy", "occupancy_percent", " %"),
        )
        if any(getattr(entry, name) is not None for entry in entries)
    ]  # fmt: skip
    rows = [
        [
            Cell(_shortened(entry.name)), Cell(f"{entry.calls:,}"), Cell(in_time(entry.total_us)),
            Cell(in_time(entry.total_us / entry.calls)), Cell(f"{entry.total_us / total:.0%}" if total else "–"),
            *(Cell(_value(getattr(entry, name), unit)) for _, name, unit in known),
        ]
        for entry in entries[:SHOWN]
    ]  # fmt: skip
    left_out = f", the {SHOWN} longest of {len(entries)}" if len(entries) > SHOWN else ""
    columns = [Column("name"), *(Column(name, "number") for name in ("calls", "total", "each", "share"))]
    return Table(
        f"{summary.what.capitalize()}{left_out}", [*columns, *(Column(one[0], "number") for one in known)], rows
    )


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}{unit}" if unit else f"{value:.3g}"


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"
