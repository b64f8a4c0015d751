"""The HTML page of `tilesmith bench`: comparison with rivals, distance from the limit, and all figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilesmith.lab.bench.output.charts import is_too_small, launch_us, roofline, size_curves
from tilesmith.lab.bench.output.contests import (
    MODES,
    Contest,
    Row,
    compare_times,
    contests,
    duration_with_spread,
    has_valid_time,
    label,
    single_precision_limits,
)
from tilesmith.lab.bench.result import OURS
from tilesmith.lab.bench.roofline.floor import ABOVE_THE_LIMIT
from tilesmith.lab.report.content import Block, Cell, Column, Facts, Headline, Paragraph, Points, Section, Table, Tone
from tilesmith.lab.report.number_format import duration, figure, memory, percent
from tilesmith.lab.report.page import render


def write_html(result: Mapping[str, Any]) -> str:
    """Return a bench result as one HTML file without external resources."""
    all_contests = contests(result)
    ops = list(dict.fromkeys(contest.op for contest in all_contests))
    measured = any(row.get("kind") != "predicted" for row in result["rows"])
    device = result.get("device") or "this machine"
    return render(
        "bench.html",
        title=f"{_listed(ops)} on {device}",
        summary="Times beside the alternatives, against limits measured on the same device."
        if measured
        else "The least times that the datasheet allows. Nothing was measured.",
        headlines=_headlines(result, all_contests),
        sections=[section for section in _sections(result, all_contests) if section.blocks],
        provenance=_provenance(result),
    )


def _listed(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{len(names)} operators"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names) or "Nothing"


def _headlines(result: Mapping[str, Any], all_contests: Sequence[Contest]) -> list[Headline]:
    headlines = []
    limits = result.get("limits") or {}
    if limits.get("copy_tb_per_s") is not None:
        promised = str(limits.get("source")).startswith("datasheet")
        origin = "by its datasheet" if promised else "measured"
        on = result.get("device") or "this device"
        headlines.append(Headline(figure(limits["copy_tb_per_s"], "TB/s"), f"copy limit of {on}, {origin}"))
    standings = Counter(contest.standing for contest in all_contests if contest.standing)
    if standings:
        total = standings.total()
        tones: dict[str, Tone] = {"faster": "good", "equal": "plain", "slower": "bad"}
        for standing, words in (("faster", "faster than"), ("equal", "equal to"), ("slower", "slower than")):
            number = standings[standing]  # type: ignore[index]  # the keys are these three words
            tone = tones[standing] if number else "plain"
            headlines.append(Headline(f"{number} of {total}", f"cases {words} the best rival", tone))
    wrong = sum(row["provider"] == OURS and _failed(row) for row in result["rows"])
    if wrong:
        headlines.append(Headline(str(wrong), "of our runs failed and have no time", "bad"))
    predicted = sum(row.get("kind") == "predicted" for row in result["rows"])
    if predicted:
        headlines.append(Headline(str(predicted), "rows predicted, not measured"))
    return headlines


def _failed(row: Row) -> bool:
    return bool(row.get("error")) or row.get("checked") is False


def _sections(result: Mapping[str, Any], all_contests: Sequence[Contest]) -> Iterator[Section]:
    yield Section("Warnings", "Read these before the figures.", _warnings(result, all_contests))
    yield Section(
        "How close to the limit",
        "The dashed lines are the limits of memory and arithmetic. The closer a mark is to them, the less there is to "
        "gain.",
        [*_present(roofline(result)), *_not_drawn(result)],
    )
    yield Section(
        "Over sizes",
        "Small cases are launch-bound, large ones memory- or compute-bound: look at several sizes.",
        _present(size_curves(result)),
    )
    yield Section("What limits each case", "What bounds the time, and what to try next.", _verdicts(all_contests))
    yield Section(
        "Every figure",
        "Device time is the median ± interquartile range. Host time per call is a separate figure.",
        [
            _table(op, mode, all_contests)
            for op, mode in dict.fromkeys((contest.op, contest.mode) for contest in all_contests)
        ],
    )
    yield Section("Without a time", "Providers that could not be timed, and why.", _left_out(all_contests))
    yield Section("Limits of this device", "All percentages refer to these limits.", _limits(result))


def _not_drawn(result: Mapping[str, Any]) -> list[Block]:
    number = sum(is_too_small(result, row) for row in result["rows"])
    if not number:
        return []
    launch = figure(launch_us(result), "µs")
    return [Paragraph(f"Not drawn: {number} launch-bound rows, whose work takes less than the {launch} of a launch.")]


def _present(block: Block | None) -> list[Block]:
    return [block] if block else []


def _throttled(entry: Mapping[str, str] | str) -> str:
    if isinstance(entry, str):
        return entry
    row = " ".join(entry[part] for part in ("op", "case", "dtype", "mode", "provider") if part in entry)
    return f"{row} ({entry.get('reasons', 'no reason given')})"


def _warnings(result: Mapping[str, Any], all_contests: Sequence[Contest]) -> list[Block]:
    sentences = []
    if result.get("partial"):
        sentences.append("Partial: the run was stopped. The page shows the rows measured before that.")
    if any(row.get("kind") == "predicted" for row in result["rows"]):
        sentences.append("Rows marked predicted come from a datasheet, not from a measurement.")
    for entry in result.get("throttled") or ():
        sentences.append(f"The GPU throttled during {_throttled(entry)}.")
    for contest in all_contests:
        over = [row for row in contest.rows if (row.get("percent_of_limit") or 0) > ABOVE_THE_LIMIT]
        if over:
            shares = ", ".join(f"{label(row)} {percent(row['percent_of_limit'])}" for row in over)
            sentences.append(f"Above the limit, so the cost counts too many bytes or flops: {contest.name} ({shares}).")
    return [Points(sentences)] if sentences else []


def _verdicts(all_contests: Sequence[Contest]) -> list[Block]:
    verdicts = [
        (contest.name, row["verdict"])
        for contest in all_contests
        for row in contest.rows
        if row["provider"] == OURS and row.get("verdict")
    ]
    columns = [Column("case"), Column("verdict", "prose")]
    return [Table("Ours", columns, [[Cell(name), Cell(verdict)] for name, verdict in verdicts])] if verdicts else []


_COLUMNS = (
    Column("case"), Column("provider"), Column("device time", "number"), Column("compared with ours"),
    Column("floor", "number"), Column("of limit", "number"), Column("TB/s", "number"), Column("TFLOP/s", "number"),
    Column("host", "number"), Column("wall", "number"), Column("peak memory", "number"),
    Column("kept for backward", "number"), Column("remarks", "prose"),
)  # fmt: skip


def _table(op: str, mode: str, all_contests: Sequence[Contest]) -> Table:
    rows = [
        _cells(contest, row)
        for contest in all_contests
        if (contest.op, contest.mode) == (op, mode)
        for row in contest.rows
    ]
    return Table(f"{op} {MODES.get(mode, mode)}", _COLUMNS, rows)


def _cells(contest: Contest, row: Row) -> list[Cell]:
    named = [Cell(contest.size), Cell(label(row))]
    if _failed(row):
        return [*named, Cell("no time", "bad"), *[Cell("–")] * 9, Cell(_reason(row), "bad")]
    share = row.get("percent_of_limit")
    return [
        *named,
        _time(contest, row),
        _compared_with_ours(contest, row),
        Cell(duration(row.get("floor_ms"))),
        Cell(percent(share), share=share / 100 if share is not None else None),
        Cell(figure(row.get("tb_per_s"))),
        Cell(figure(row.get("tflop_per_s"))),
        Cell(figure(row.get("host_us"), "µs")),
        Cell(duration(row.get("wall_ms"))),
        Cell(memory(row.get("peak_bytes"))),
        Cell(memory(row.get("kept_bytes"))),
        Cell(_remarks(row)),
    ]


def _time(contest: Contest, row: Row) -> Cell:
    """Return the time, green for the fastest; a prediction is shown as a bound."""
    if row.get("kind") == "predicted":
        return Cell(f"predicted ≥ {duration(row.get('floor_ms'))}" if row.get("floor_ms") else "predicted: –")
    fastest = min((one["device_ms"] for one in contest.rows if has_valid_time(one)), default=None)
    return Cell(duration_with_spread(row), "good" if has_valid_time(row) and row["device_ms"] == fastest else "plain")


def _compared_with_ours(contest: Contest, row: Row) -> Cell:
    ours = contest.ours
    if ours is None or row is ours or not has_valid_time(row):
        return Cell("–")
    standing = compare_times(row, ours)
    if standing == "equal":
        return Cell("equal")
    slower, faster = sorted((row["device_ms"], ours["device_ms"]), reverse=True)
    tone: Tone = "bad" if standing == "faster" else "plain"
    return Cell(f"{slower / faster:.2f} × {standing}", tone)


def _remarks(row: Row) -> str:
    remarks = [" ".join(_point(row))]
    if row.get("throttled"):
        remarks.append(f"throttled ({', '.join(row['throttled'])})")
    remarks += row.get("notes") or ()
    if row.get("method"):
        remarks.append(f"{row['method']}, {row['samples']} samples" if row.get("samples") else str(row["method"]))
    return "; ".join(remark for remark in remarks if remark)


def _point(row: Row) -> list[str]:
    """Return the fields of a sweep's point."""
    return [f"{name}={value}" for name, value in (row.get("config") or {}).items()]


def _reason(row: Row) -> str:
    return str(row.get("error") or "the result is wrong")


def _left_out(all_contests: Sequence[Contest]) -> list[Block]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for contest in all_contests:
        for row in contest.rows:
            if _failed(row):
                reasons.setdefault((label(row), _reason(row)), []).append(", ".join([contest.name, *_point(row)]))
    all_rows = Counter(label(row) for contest in all_contests for row in contest.rows)
    columns = [Column("provider"), Column("why", "prose"), Column("cases", "prose")]
    rows = [
        [
            Cell(provider),
            Cell(reason),
            Cell(f"all {len(names)}" if 1 < len(names) == all_rows[provider] else "; ".join(names)),
        ]
        for (provider, reason), names in reasons.items()
    ]
    return [Table("Missing, failed or wrong", columns, rows)] if rows else []


def _limits(result: Mapping[str, Any]) -> list[Block]:
    limits = result.get("limits") or {}
    known = {
        "Copy": figure(limits.get("copy_tb_per_s"), "TB/s"),
        "Read": figure(limits.get("read_tb_per_s"), "TB/s"),
        **{f"GEMM, {name}": figure(rate, "TFLOP/s") for name, rate in (limits.get("matmul_tflop_per_s") or {}).items()},
        "GEMM, float32 compared with": ", ".join(single_precision_limits(result)) or "–",
        "Launch": figure(limits.get("launch_us") or None, "µs"),
        "Source": limits.get("source") or "–",
    }
    stated = {name: value for name, value in known.items() if not value.startswith("–")}
    return [Facts(stated)] if stated else [Paragraph("The limits were not measured.")]


def _provenance(result: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "Device": "device", "Driver": "driver", "PyTorch": "torch", "Triton": "triton", "Tilesmith": "tilesmith",
        "Commit": "commit", "Measured": "date",
    }  # fmt: skip
    return {title: str(result.get(key) or "unknown") for title, key in names.items()}
