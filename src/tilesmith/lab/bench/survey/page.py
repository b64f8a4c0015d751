"""The report of a survey: terminal tables, and an HTML page with cumulative curves and every case as a point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilesmith.lab.bench.survey.summary import ALL, QUANTILES, Entry, Speeds, Summary, summaries
from tilesmith.lab.report.content import (
    Axis,
    Block,
    Ceiling,
    Cell,
    Chart,
    Charts,
    Column,
    Headline,
    Mark,
    Points,
    Section,
    Series,
    Table,
)
from tilesmith.lab.report.number_format import duration, figure, percent
from tilesmith.lab.report.page import render

LEGEND = ("ours beside the fastest rival", "auto beside PyTorch")
LOWEST, HIGHEST = 0.25, 8.0  # speeds outside are drawn at the edge
TICKS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 8.0)
MOST_WRONG_SHOWN = 20


def blocks(survey: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the terminal report: what is wrong first, then one line an operator, then the worst cases."""
    found = summaries(survey)
    wrong = found[-1].wrong if found else ()
    if wrong:
        more = [f"… and {len(wrong) - MOST_WRONG_SHOWN} more"] if len(wrong) > MOST_WRONG_SHOWN else []
        yield Points([*(f"WRONG: {one}" for one in wrong[:MOST_WRONG_SHOWN]), *more])
    yield from _tables(found)
    yield Points(_closing(survey))


def write_html(survey: Mapping[str, Any]) -> str:
    """Return a survey as one HTML file without external resources."""
    found = summaries(survey)
    device = survey.get("device") or "this machine"
    return render(
        "bench.html",
        title=f"Survey of {_listed([one.op for one in found if one.op != ALL])} on {device}",
        summary=f"{survey['drawn']} cases an operator, drawn at random with seed {survey['seed']}. "
        "A speed above 1 means that we are faster.",
        headlines=_headlines(found[-1]) if found else [],
        sections=[section for section in _sections(survey, found) if section.blocks],
        provenance=_provenance(survey),
    )


def _provenance(survey: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "Device": "device", "Driver": "driver", "PyTorch": "torch", "Triton": "triton", "Tilesmith": "tilesmith",
        "Commit": "commit", "Measured": "date", "Seed": "seed",
    }  # fmt: skip
    known = {title: survey.get(key) for title, key in names.items()}
    return {title: "unknown" if value is None else str(value) for title, value in known.items()}


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} operators" if len(names) > 3 else ", ".join(names)


def _headlines(everything: Summary) -> list[Headline]:
    found = [
        Headline(percent(_hundred(everything.auto_as_fast)), "of cases: auto within 3 % of PyTorch or ahead"),
        Headline(
            percent(_hundred(everything.auto_behind)), "of cases: auto more than 8 % behind",
            "bad" if everything.auto_behind else "plain",
        ),
        Headline(percent(_hundred(everything.best_as_fast)), "of cases: within 5 % of the fastest rival or ahead"),
        Headline(percent(_hundred(everything.at_limit)), "of large memory-bound cases at 85 % of the copy limit"),
    ]  # fmt: skip
    wrong = [Headline(str(len(everything.wrong)), "cases without a right result", "bad")] if everything.wrong else []
    return wrong + found


def _operators(found: Sequence[Summary]) -> Sequence[Summary]:
    """Return the summaries without that of all operators."""
    return found[:-1] if len(found) > 1 else found


def _hundred(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _sections(survey: Mapping[str, Any], found: Sequence[Summary]) -> Iterator[Section]:
    if found and found[-1].wrong:
        yield Section("Wrong", "These cases have no time of ours.", [Points(list(found[-1].wrong))])
    yield Section(
        "Curves",
        "A curve gives the share of cases (vertical) at or below a speed (horizontal). Every point is one direction of "
        "one case.",
        [Charts(LEGEND, [_chart(one) for one in found if one.entries])],
    )
    yield Section("In figures", "Speeds are quotients of device times.", list(_tables(found)))
    yield Section(
        "Every case", "Device times in the order of the draws.", [_everything(one) for one in _operators(found)]
    )
    yield Section("About this run", "", [Points(_closing(survey))])


def _chart(one: Summary) -> Chart:
    across = Axis("speed", LOWEST, HIGHEST, [(tick, f"{tick:g}") for tick in TICKS], logarithmic=True)
    up = Axis("share of cases", 0.0, 1.0, [(tick / 4, f"{25 * tick} %") for tick in range(5)])
    series = [_series(style, one, speed) for style, speed in enumerate(("beside_rival", "auto_beside_torch"))]
    equal = Ceiling("equal", [(1.0, 0.0), (1.0, 1.0)], (1.0, 0.97))
    return Chart(f"{one.op}: {len(one.entries)} directions", across, up, [equal], series, _worst_table(one))


def _series(style: int, summary: Summary, speed: str) -> Series:
    """Return the cumulative curve of a speed. Each entry is a mark, but for the curve of all operators."""
    entries = [one for one in summary.entries if getattr(one, speed) is not None]
    known = sorted(((float(getattr(one, speed)), one) for one in entries), key=lambda pair: pair[0])
    marks = [
        Mark(min(max(value, LOWEST), HIGHEST), (place + 1) / len(known), one.name, _figures(one, value))
        for place, (value, one) in enumerate(known)
    ]
    return Series(style, () if summary.op == ALL else marks, [mark.place for mark in marks])


def _figures(one: Entry, speed: float) -> list[str]:
    times = [f"{name} {duration(ms)}" for name, ms in one.times.items()]
    share = [f"{one.of_limit:.0%} of the copy limit"] if one.of_limit is not None else []
    return [f"{speed:.2f} ×", *times, *share, *([f"auto takes {one.chosen}"] if one.chosen else [])]


def _tables(found: Sequence[Summary]) -> Iterator[Block]:
    speeds = (
        _speed_table("Ours beside the fastest rival", [(one.op, one.beside_rival) for one in found]),
        _speed_table("auto beside PyTorch", [(one.op, one.auto_beside_torch) for one in found]),
    )
    yield from (table for table in speeds if table.rows)
    yield _share_table(found)
    for one in _operators(found):
        yield _worst_table(one)


def _speed_table(caption: str, rows: Sequence[tuple[str, Speeds | None]]) -> Table:
    names = ["worst", *(f"{share:.0%}" for share in QUANTILES[1:])]
    columns = [Column("operator"), Column("timed", "number"), Column("geometric mean", "number")]
    columns += [Column(name, "number") for name in names]
    return Table(
        caption,
        columns,
        [
            [Cell(op), Cell(str(one.count)), _speed(one.geometric_mean), *map(_speed, one.quantiles)]
            for op, one in rows
            if one is not None
        ],
    )


def _speed(value: float | None) -> Cell:
    if value is None:
        return Cell("–")
    return Cell(f"{value:.2f}", "bad" if value < 1 / 1.08 else "good" if value > 1.03 else "plain")


def _share_table(found: Sequence[Summary]) -> Table:
    columns = [
        Column("operator"), Column("auto within 3 %", "number"), Column("auto > 8 % behind", "number"),
        Column("within 5 % of best", "number"), Column("≥ 85 % of copy limit", "number"), Column("of", "number"),
        Column("wrong", "number"),
    ]  # fmt: skip
    rows = [
        [
            Cell(one.op),
            Cell(percent(_hundred(one.auto_as_fast))),
            Cell(percent(_hundred(one.auto_behind)), "bad" if one.auto_behind else "plain"),
            Cell(percent(_hundred(one.best_as_fast))),
            Cell(percent(_hundred(one.at_limit))),
            Cell(str(len(one.of_limit))),
            Cell(str(len(one.wrong)), "bad" if one.wrong else "plain"),
        ]
        for one in found
    ]
    return Table("Shares of cases; the copy limit counts memory-bound cases from 64 MiB", columns, rows)


def _worst_table(one: Summary) -> Table:
    columns = [
        Column("case", "prose"), Column("beside rival", "number"), Column("fastest"),
        Column("auto / PyTorch", "number"), Column("auto takes"), Column("ours", "number"),
        Column("PyTorch", "number"), Column("of limit", "number"),
    ]  # fmt: skip
    listed = list({entry.name: entry for entry in (*one.worst, *one.worst_auto)}.values())
    return Table(f"{one.op}: the worst cases, beside the fastest rival and beside PyTorch", columns, _rows(listed))


def _everything(one: Summary) -> Table:
    columns = _worst_table(one).columns
    return Table(one.op, columns, _rows(one.entries))


def _rows(listed: Sequence[Entry]) -> list[list[Cell]]:
    return [
        [
            Cell(entry.name), _speed(entry.beside_rival), Cell(entry.rival or "–"), _speed(entry.auto_beside_torch),
            Cell(entry.chosen or "–"), Cell(duration(entry.times.get("tilesmith"))),
            Cell(duration(entry.times.get("torch"))), Cell(percent(_hundred(entry.of_limit))),
        ]
        for entry in listed
    ]  # fmt: skip


def _closing(survey: Mapping[str, Any]) -> list[str]:
    cases = survey["cases"]
    seconds = [case["seconds"] for case in cases if case.get("seconds")]
    limits = survey.get("limits") or {}
    sentences = [
        f"{len(cases)} cases, seed {survey['seed']}, {survey['drawn']} an operator, on {survey.get('device')}"
        + (f"; {math.fsum(seconds) / len(seconds):.2f} s a case" if seconds else "")
    ]
    if limits.get("copy_tb_per_s"):
        sentences.append(f"copy limit {figure(limits['copy_tb_per_s'])} TB/s ({limits.get('source')})")
    missing: dict[str, set[str]] = {}
    for case in cases:
        for direction in case["directions"].values():
            for provider, reason in direction["errors"].items():
                missing.setdefault(f"{provider}: {reason}", set()).add(f"{case['op']} {case['name']}")
    for reason, names in sorted(missing.items()):
        sentences.append(f"{reason} ({len(names)} cases)")
    if survey.get("partial"):
        sentences.append("Partial: the run was stopped before its last case.")
    return sentences
