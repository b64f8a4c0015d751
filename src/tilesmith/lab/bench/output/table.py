"""Terminal tables of a result: one per case, with all providers and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilesmith.lab.bench.output.contests import (
    WORTH_TFLOPS,
    Contest,
    Row,
    compare_times,
    contests,
    duration_with_spread,
    has_valid_time,
    label,
    single_precision_limits,
)
from tilesmith.lab.bench.output.sweep_table import own_notes, points, reasons, sweep_table
from tilesmith.lab.bench.result import OURS
from tilesmith.lab.report.content import Block, Cell, Column, Table
from tilesmith.lab.report.number_format import duration, figure, memory, percent


def blocks(result: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the report of a result."""
    all_contests = contests(result)
    swept = [contest for contest in all_contests if any(row["config"] for row in contest.rows)]
    predicted = [
        one for one in all_contests if one not in swept and all(row["kind"] == "predicted" for row in one.rows)
    ]
    for op in dict.fromkeys(contest.op for contest in predicted):
        yield from _predictions(op, [row for contest in predicted if contest.op == op for row in contest.rows])
    for contest in all_contests:
        if contest in swept:
            yield from sweep_table(contest)
        elif contest not in predicted:
            yield from _contest(contest)
    yield from points(_closing(result))


def _contest(contest: Contest) -> Iterator[Block]:
    shown = [row for row in contest.rows if not row["error"]]
    by_flops = any((row["intensity"] or 0.0) > WORTH_TFLOPS for row in shown)
    columns = [
        Column("provider"), Column("device", "number"), Column("TFLOP/s" if by_flops else "TB/s", "number"),
        Column("of limit", "number"), Column("host", "number"), Column("wall", "number"),
        Column("peak", "number"), Column("kept", "number"),
        Column(f"{label(contest.ours)} is" if contest.ours else ""),
    ]  # fmt: skip
    if shown:
        yield Table(contest.name, columns, [_cells(contest, row, by_flops) for row in shown])
    sentences = [f"{label(row)}: {row['error']}" for row in contest.rows if row["error"]]
    if shown:
        sentences += [f"{label(row)}: {note}" for row in shown for note in _notes(row)]
        sentences += [row["verdict"] for row in shown if row["provider"] == OURS and row["verdict"]]
    yield from points(sentences if shown else [f"{contest.name}: {sentence}" for sentence in sentences])


def _cells(contest: Contest, row: Row, by_flops: bool) -> list[Cell]:
    return [
        Cell(label(row)),
        Cell(duration_with_spread(row)),
        Cell(figure(row["tflop_per_s"] if by_flops else row["tb_per_s"])),
        Cell("in L2" if row["in_cache"] else percent(row["percent_of_limit"])),
        Cell(figure(row["host_us"], "µs")),
        Cell(duration(row["wall_ms"])),
        Cell(memory(row["peak_bytes"])),
        Cell(memory(row["kept_bytes"])),
        _standing(contest, row),
    ]


def _standing(contest: Contest, row: Row) -> Cell:
    """Return how the operator compares with this rival, where both results are correct."""
    ours = contest.ours
    if ours is None or row is ours or not has_valid_time(row):
        return Cell("")
    standing = compare_times(ours, row)
    if standing == "equal":
        return Cell("equal")
    slower, faster = sorted((row["device_ms"], ours["device_ms"]), reverse=True)
    return Cell(f"{slower / faster:.2f} × {standing}", "good" if standing == "faster" else "bad")


def _notes(row: Row) -> Iterator[str]:
    yield from own_notes(row)
    if row.get("auto") == "torch":
        yield "the kernels were timed, but by default PyTorch computes this case"
    if row["throttled"]:
        yield f"throttled during the run: {', '.join(row['throttled'])}"
    if row["method"] and not row["method"].startswith("graph"):
        yield row["method"]


def _predictions(op: str, rows: Sequence[Row]) -> Iterator[Block]:
    columns = [
        Column("case"), Column("dtype"), Column("mode"), Column("bytes", "number"), Column("Mflop", "number"),
        Column("least time", "number"), Column("check"),
    ]  # fmt: skip
    yield Table(f"{op}: predicted, not measured", columns, [_predicted_cells(row) for row in rows])
    yield from points(reasons(rows, lambda row: f"{row['case']} {row['dtype']} {row['mode']}"))
    yield from points(dict.fromkeys(note for row in rows for note in row["notes"]))


def _predicted_cells(row: Row) -> list[Cell]:
    checks = {True: Cell("right", "good"), False: Cell("wrong", "bad"), None: Cell("too large")}
    sizes = " × ".join(str(size) for size in row["sizes"].values())
    return [
        Cell(f"{row['case']} {sizes}"),
        Cell(row["dtype"]),
        Cell(row["mode"]),
        Cell(memory(row["bytes"])),
        Cell(figure(row["flops"] / 1e6 if row["flops"] is not None else None)),
        Cell(duration(row["floor_ms"])),
        Cell("failed", "bad") if row["error"] and row["checked"] is None else checks[row["checked"]],
    ]


def _closing(result: Mapping[str, Any]) -> Iterator[str]:
    limits = result["limits"]
    if limits:
        rates = ", ".join(f"{name} {figure(rate)}" for name, rate in limits["matmul_tflop_per_s"].items())
        single = "".join(f", float32 compared with {limit}" for limit in single_precision_limits(result))
        yield (
            f"{result['device']}: copy {figure(limits['copy_tb_per_s'])} TB/s, read {figure(limits['read_tb_per_s'])} "
            f"TB/s, GEMM {rates} TFLOP/s{single} ({limits['source']})"
        )
    if any(row["kind"] == "predicted" for row in result["rows"]):
        yield "Nothing was timed: predictions come from the datasheet, which no kernel reaches."
    if result["partial"]:
        yield "Partial: the run was stopped. Rows measured before that are above and in the files."
