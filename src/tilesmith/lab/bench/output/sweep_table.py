"""The table of a sweep: one line per point and kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tilesmith.lab.bench.output.contests import Contest, Row, duration_with_spread, has_valid_time
from tilesmith.lab.report.content import Block, Cell, Column, Points, Table
from tilesmith.lab.report.number_format import memory, percent


def sweep_table(contest: Contest) -> Iterator[Block]:
    """Yield the table of a sweep with time, registers, spills and occupancy of each point."""
    best = best_of(contest.rows)
    fields = list(contest.rows[0]["config"])
    columns = [
        *(Column(name, "number") for name in fields), Column("device", "number"), Column("kernel"),
        Column("registers", "number"), Column("spilled", "number"), Column("occupancy", "number"),
        Column("sectors", "number"), Column(""),
    ]  # fmt: skip
    rows = []
    for row in contest.rows:
        point = [Cell(str(row["config"].get(name))) for name in fields]
        time = Cell(row["kind"] if row["device_ms"] is None and not row["error"] else duration_with_spread(row))
        failed = "refused" if row["checked"] is False else "failed"
        remark = Cell(failed, "bad") if row["error"] else Cell("best", "good") if row is best else Cell("")
        launches = row["launches"] or [{}]
        for number, launch in enumerate(launches):
            first = number == 0
            rows.append([*(point if first else [Cell("")] * len(point)), time if first else Cell(""),
                         *_launch_cells(launch), remark if first else Cell("")])  # fmt: skip
    yield Table(f"{contest.name}: sweep", columns, rows)
    yield from points(
        reasons(contest.rows, lambda row: ", ".join(f"{name}={row['config'].get(name)}" for name in fields))
    )
    missed = sorted({name for row in contest.rows if row["launches"] for name in unreached(row)})
    yield from points(f"{name} reaches no kernel: its times mean nothing" for name in missed)
    notes = dict.fromkeys(note for row in contest.rows for note in (*own_notes(row), *_sector_notes(row)))
    yield from points(notes)


def _sector_notes(row: Row) -> Iterator[str]:
    launches = row["launches"]
    if not row["error"] and not any("sectors" in launch for launch in launches):
        yield "sectors are counted only for Tilesmith's operators, without a GPU"
    for launch in launches:
        if launch.get("sectors_note"):
            yield f"sectors of {launch['kernel']}: {launch['sectors_note']}"


def _launch_cells(launch: Mapping[str, Any]) -> list[Cell]:
    occupancy = launch.get("occupancy")
    spilled = launch.get("spill_bytes")
    sectors = launch.get("sectors")
    return [
        Cell(launch.get("kernel", "")),
        Cell(str(launch.get("registers") or "–")),
        Cell(memory(spilled), "bad" if spilled else "plain"),
        Cell(percent(100 * occupancy if occupancy is not None else None)),
        Cell("–" if sectors is None else f"{sectors:,}"),
    ]


def best_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the fastest correct point."""
    return min((row for row in rows if has_valid_time(row)), key=lambda row: float(row["device_ms"]), default=None)


def unreached(row: Mapping[str, Any]) -> list[str]:
    """Return the swept fields whose value appears in no launch."""
    launches = row["launches"]
    return [
        name
        for name, value in row["config"].items()
        # A lower-case field, or an argument of a file's operator, may only set the grid or be renamed in the kernel.
        if ((name.isupper() and not row.get("file")) or any(_values(one, name) for one in launches))
        and not any(value in _values(one, name) for one in launches)
    ]


def _values(launch: Mapping[str, Any], name: str) -> list[Any]:
    """Return the values of this name in a launch: a constant of the kernel, or an option."""
    return [place[name] for place in (launch.get("constants") or {}, launch) if name in place]


def reasons(rows: Iterable[Row], name: Callable[[Row], str]) -> Iterator[str]:
    """Yield each error once, with the names of the rows that have it."""
    named: dict[str, list[str]] = {}
    for row in rows:
        if row["error"]:
            named.setdefault(row["error"], []).append(name(row))
    return (f"{'; '.join(names)}: {error}" for error, names in named.items())


def own_notes(row: Row) -> Iterator[str]:
    # The table already says that a case fits in L2.
    return (note for note in row["notes"] if not (row["in_cache"] and note.startswith("fits in L2")))


def points(sentences: Iterable[str]) -> Iterator[Block]:
    listed = list(sentences)
    if listed:
        yield Points(listed)
