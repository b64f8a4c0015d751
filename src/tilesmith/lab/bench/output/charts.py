"""Charts of a bench result: the roofline, and speed over size."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilesmith.lab.bench.output.contests import MODES, Contest, Row, contests, duration_with_spread, label, labels
from tilesmith.lab.report.content import Axis, Ceiling, Cell, Chart, Charts, Column, Mark, Series, Table
from tilesmith.lab.report.number_format import duration, figure, percent

_MATPLOTLIB_SHAPES = "os^DvPHd"
_PNG_COLOURS = ("#0b6470", "#c2410c", "#6d4bc3", "#9a6a00", "#b0246e", "#2563a8", "#4d7c0f", "#6b6f76")
_USUAL_LAUNCH_US = 2.0  # used where it was not measured; current GPUs are not much faster

Shown = tuple[Contest, Row]


class ChartError(Exception):
    """There is no chart. The message is one line for the user."""


def roofline(result: Mapping[str, Any]) -> Charts | None:
    """Return the chart of TFLOP/s over flops per byte, under the limits of the device."""
    legend = _legend(result)
    shown = [one for one in _drawable(result) if _has_place(one[1]) and not is_too_small(result, one[1])]
    if not shown:
        return None
    across = [_intensity(row) for _, row in shown]
    low, high = min(across) / 3, max(across) * 3
    limits = result.get("limits") or {}
    heights = [row["tflop_per_s"] for _, row in shown]
    x = _logarithmic("flops per byte", low, high)
    y = _logarithmic("TFLOP/s", min(heights) / 2, max(*heights, _roof(limits, high)) * 1.5)
    series = []
    for style, name in enumerate(legend):
        own = [(contest, row) for contest, row in shown if label(row) == name]
        marks = [_mark(_intensity(row), row["tflop_per_s"], contest, row) for contest, row in own]
        series.append(Series(style, marks))
    chart = Chart(
        "Roofline: how close to the limit", x, y, _ceilings(limits, shown, x, y), series, _roofline_table(shown)
    )
    return Charts(legend, [chart])


def is_too_small(result: Mapping[str, Any], row: Row) -> bool:
    """Return whether the launch takes longer than the least time of the work."""
    floor_ms = row.get("floor_ms")
    return floor_ms is not None and bool(1000 * floor_ms < launch_us(result))


def launch_us(result: Mapping[str, Any]) -> float:
    return (result.get("limits") or {}).get("launch_us") or _USUAL_LAUNCH_US


def _has_place(row: Row) -> bool:
    return all(row.get(name) for name in ("tflop_per_s", "bytes", "flops"))


def _roof(limits: Mapping[str, Any], intensity: float) -> float:
    """Return the highest rate at this intensity; 0 where the limits are unknown."""
    slope = intensity * (limits.get("copy_tb_per_s") or 0.0)
    return min(slope, max(_matrix_rates(limits).values(), default=slope))


def _matrix_rates(limits: Mapping[str, Any]) -> dict[str, float]:
    return {name: rate for name, rate in (limits.get("matmul_tflop_per_s") or {}).items() if rate}


def size_curves(result: Mapping[str, Any]) -> Charts | None:
    """Return charts of TB/s (memory-bound) or TFLOP/s (compute-bound) over size, per operator, mode and dtype."""
    legend = _legend(result)
    groups: dict[tuple[str, str, str], list[Shown]] = {}
    for contest, row in _drawable(result):
        # Predictions lie on the limit at every size, so they are not drawn.
        if row.get("kind") != "predicted" and row.get("tb_per_s") and row.get("bytes"):
            groups.setdefault((contest.op, contest.mode, contest.dtype), []).append((contest, row))
    charts = [
        _size_curve(result.get("limits") or {}, sorted(shown, key=lambda one: float(one[1]["bytes"])), legend)
        for shown in groups.values()
        if len({row["bytes"] for _, row in shown}) > 1
    ]
    return Charts(legend, charts) if charts else None


def _size_curve(limits: Mapping[str, Any], shown: Sequence[Shown], legend: Sequence[str]) -> Chart:
    first = shown[0][0]
    title = f"{first.op} {MODES.get(first.mode, first.mode)}, {first.dtype}"
    rate, unit, limit = _bound(limits, shown)
    sizes = [row["bytes"] for _, row in shown]
    highest = max(*(row[rate] for _, row in shown), limit or 0.0) * 1.12
    x = _logarithmic("bytes moved at least", min(sizes) / 1.5, max(sizes) * 1.5, _in_bytes)
    y = Axis(unit, 0.0, highest, _even_ticks(highest))
    series = []
    for style, name in enumerate(legend):
        own = [(contest, row) for contest, row in shown if label(row) == name]
        marks = [_mark(row["bytes"], row[rate], contest, row) for contest, row in own]
        series.append(Series(style, marks, _steps(marks)))
    at = x.low * (x.high / x.low) ** 0.4  # small sizes lie low, which leaves room for the label
    ceilings = [Ceiling(f"limit {figure(limit)}", [(x.low, limit), (x.high, limit)], (at, limit))] if limit else []
    return Chart(title, x, y, ceilings, series, _size_table(f"{title}: {unit}", shown, rate, legend))


def _bound(limits: Mapping[str, Any], shown: Sequence[Shown]) -> tuple[str, str, float | None]:
    """Return the rate that bounds these rows, its unit, and its limit."""
    copy = limits.get("copy_tb_per_s")
    dtype = shown[0][0].dtype
    # Older results lack this field; they compared float32 with tf32.
    matrix = shown[0][1].get("matrix_limit_tflop_per_s") or _matrix_rates(limits).get(
        "tf32" if dtype == "fp32" else dtype
    )
    if copy and matrix and all(row.get("flops") and _intensity(row) > matrix / copy for _, row in shown):
        return "tflop_per_s", "TFLOP/s", matrix
    return "tb_per_s", "TB/s", copy


def _steps(marks: Sequence[Mark]) -> list[tuple[float, float]]:
    """Return the line through the marks. A mark of nearly the same size as the last is skipped."""
    line: list[tuple[float, float]] = []
    for mark in marks:
        if not line or mark.x > 1.1 * line[-1][0]:
            line.append(mark.place)
    return line


def _legend(result: Mapping[str, Any]) -> list[str]:
    return labels(row for _, row in _drawable(result))


def _drawable(result: Mapping[str, Any]) -> Iterable[Shown]:
    """Yield the rows with a time and a correct result. A prediction is drawn at its floor."""
    for contest in contests(result):
        for row in contest.rows:
            if row.get("error") or row.get("checked") is False:
                continue
            if row.get("device_ms") is not None:
                yield contest, row
            elif row.get("kind") == "predicted" and row.get("floor_ms"):
                yield (
                    contest,
                    {
                        **row,
                        "tb_per_s": (row.get("bytes") or 0) / row["floor_ms"] / 1e9,
                        "tflop_per_s": (row.get("flops") or 0) / row["floor_ms"] / 1e9,
                    },
                )


def _intensity(row: Row) -> float:
    return float(row["flops"] / row["bytes"])


def _mark(x: float, y: float, contest: Contest, row: Row) -> Mark:
    predicted = row.get("kind") == "predicted"
    figures = [
        _labelled(row),
        f"at best {duration(row['floor_ms'])}" if predicted else duration_with_spread(row),
        f"{figure(row.get('tb_per_s'), 'TB/s')}, {figure(row.get('tflop_per_s'), 'TFLOP/s')}",
    ]
    if row.get("percent_of_limit") is not None:
        figures.append(f"{percent(row['percent_of_limit'])} of limit")
    if row.get("throttled"):
        figures.append(f"throttled: {', '.join(row['throttled'])}")
    return Mark(x, y, contest.name, figures, open=predicted)


def _ceilings(limits: Mapping[str, Any], shown: Sequence[Shown], x: Axis, y: Axis) -> list[Ceiling]:
    """Return bandwidths as slopes and matrix rates as levels; those outside the chart are left out."""
    copy = limits.get("copy_tb_per_s")
    rates = _matrix_rates(limits)
    highest = max(rates.values(), default=math.inf)
    found = []
    for name, along in (("copy", 0.5), ("read", 0.75)):
        bandwidth = limits.get(f"{name}_tb_per_s")
        if bandwidth:
            end = min(x.high, highest / bandwidth, y.high / bandwidth)
            start = max(x.low, y.low / bandwidth)
            at = start * (end / start) ** along
            label = f"{name} {figure(bandwidth, 'TB/s')}"
            found.append(Ceiling(label, [(start, start * bandwidth), (end, end * bandwidth)], (at, at * bandwidth)))
    for name, rate in _levels(rates, shown).items():
        start = max(x.low, rate / copy) if copy else x.low
        if start < x.high and y.low < rate < y.high:
            found.append(Ceiling(f"{name} {figure(rate, 'TFLOP/s')}", [(start, rate), (x.high, rate)], (x.high, rate)))
    return found


def _levels(rates: Mapping[str, float], shown: Sequence[Shown]) -> dict[str, float]:
    """Return the measured rates, and derived rates of the rows, such as six bf16 products."""
    derived = {
        row["matrix_limit"]: row["matrix_limit_tflop_per_s"]
        for _, row in shown
        if row.get("matrix_limit_tflop_per_s") and row["matrix_limit"] not in rates
    }
    return {**{f"{name} matrix": rate for name, rate in rates.items()}, **derived}


def _logarithmic(label: str, low: float, high: float, name: Callable[[float], str] = "{:,g}".format) -> Axis:
    decades = math.log10(high / low)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if decades < 2.5:
        values = [step * 10.0**exponent for exponent in exponents for step in (1, 2, 5)]
    else:
        values = [10.0**exponent for exponent in exponents if decades < 6 or exponent % 3 == 0]
    return Axis(label, low, high, [(value, name(value)) for value in values if low <= value <= high], logarithmic=True)


def _in_bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} B"


def _even_ticks(highest: float) -> list[tuple[float, str]]:
    """Return four to nine ticks from zero, in steps of 1, 2 or 5 times a power of ten."""
    rough = highest / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough)
    return [(count * step, f"{count * step:g}") for count in range(int(highest / step) + 1)]


def _roofline_table(shown: Sequence[Shown]) -> Table:
    columns = [
        Column("case"), Column("provider"), Column("flops per byte", "number"), Column("TFLOP/s", "number"),
        Column("of limit", "number"),
    ]  # fmt: skip
    rows = [
        [
            Cell(contest.name), Cell(_labelled(row)), Cell(figure(_intensity(row))), Cell(figure(row["tflop_per_s"])),
            Cell(percent(row.get("percent_of_limit"))),
        ]
        for contest, row in shown
    ]  # fmt: skip
    return Table("The roofline as figures", columns, rows)


def _size_table(title: str, shown: Sequence[Shown], rate: str, legend: Sequence[str]) -> Table:
    """Return a table with one row per size and one column per provider; a sweep shows its fastest point."""
    present = [name for name in legend if any(label(row) == name for _, row in shown)]
    by_size: dict[str, dict[str, float]] = {}
    for contest, row in shown:
        best = by_size.setdefault(contest.size, {})
        best[label(row)] = max(row[rate], best.get(label(row), 0.0))
    rows = [[Cell(size), *(Cell(figure(best.get(name))) for name in present)] for size, best in by_size.items()]
    return Table(title, [Column("case"), *(Column(name, "number") for name in present)], rows)


def _labelled(row: Row) -> str:
    swept = " ".join(f"{name}={value}" for name, value in (row.get("config") or {}).items())
    named = f"{label(row)} {swept}".rstrip()
    return f"{named}, predicted" if row.get("kind") == "predicted" else named


def png(result: Mapping[str, Any]) -> bytes:
    """Return all charts as one PNG. Raises ChartError without matplotlib or without rows to draw."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]  # an extra
    except ImportError:
        raise ChartError("a PNG needs matplotlib, which is not installed: pip install matplotlib") from None
    blocks = [block for block in (roofline(result), size_curves(result)) if block]
    charts = [chart for block in blocks for chart in block.charts]
    if not charts:
        raise ChartError("nothing to draw: no row has a time, bytes and flops")
    legend = blocks[0].legend
    lines = math.ceil(len(charts) / 2)
    picture = Figure(figsize=(14, 4.6 * lines + 0.8), layout="constrained")
    places = picture.subplots(lines, 2, squeeze=False).flatten()
    for place, chart in zip(places, charts, strict=False):
        _draw(place, chart, legend)
    for place in places[len(charts) :]:
        place.set_axis_off()
    handles, labels = places[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper right", ncols=len(legend), frameon=False)
    made = (f"{result.get('device') or 'no device'}", result.get("commit") or "", result.get("date") or "")
    picture.suptitle(", ".join(word for word in made if word), x=0.01, ha="left", fontsize=11)
    target = io.BytesIO()
    picture.savefig(target, format="png", dpi=110)
    return target.getvalue()


def _draw(place: Any, chart: Chart, legend: Sequence[str]) -> None:
    for axis, name in ((chart.x, "x"), (chart.y, "y")):
        if axis.logarithmic:
            getattr(place, f"set_{name}scale")("log")
        getattr(place, f"set_{name}lim")(axis.low, axis.high)
        getattr(place, f"set_{name}ticks")(
            [value for value, _ in axis.ticks], [text for _, text in axis.ticks], minor=False
        )
        getattr(place, f"set_{name}label")(axis.label)
    for ceiling in chart.ceilings:
        place.plot(*zip(*ceiling.points, strict=True), color="#5c6166", linestyle="--", linewidth=1)
        place.annotate(
            ceiling.label, ceiling.label_at, xytext=(-4, 4), textcoords="offset points", ha="right", fontsize=8
        )
    for series in chart.series:
        _draw_series(place, series, legend[series.style])
    place.set_title(chart.title, loc="left", fontsize=10, fontweight="bold")
    place.minorticks_off()
    place.spines[["top", "right"]].set_visible(False)


def _draw_series(place: Any, series: Series, name: str) -> None:
    colour = _PNG_COLOURS[series.style % len(_PNG_COLOURS)]
    style = {
        "linestyle": "none", "marker": _MATPLOTLIB_SHAPES[series.style % len(_MATPLOTLIB_SHAPES)], "color": colour,
        "zorder": 10 - series.style,
    }  # fmt: skip
    measured = [mark.place for mark in series.marks if not mark.open]
    predicted = [mark.place for mark in series.marks if mark.open]
    place.plot([x for x, _ in measured], [y for _, y in measured], label=name, **style)
    place.plot([x for x, _ in predicted], [y for _, y in predicted], markerfacecolor="none", **style)
    place.plot([x for x, _ in series.line], [y for _, y in series.line], color=colour, zorder=2)
