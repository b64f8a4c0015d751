"""README's chart: training steps of whole models, drawn calls beside PyTorch, named cases beside their best rival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any, NamedTuple

from tilesmith.lab.bench.output.contests import Contest
from tilesmith.lab.doc_tables.ratio_columns import EVEN, Area, ratio_columns, svg
from tilesmith.lab.report.number_format import duration, figure, memory

WIDTH, HEIGHT = 920, 436
BARS_LEFT, BARS_WIDTH = 150, 200  # where bars start, and the longest bar
CURVES_LEFT, CURVE_HEIGHT, CURVES_APART = 510, 112, 200

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """One version of a model: its name, its time, and what else is worth saying."""

    label: str
    milliseconds: float
    note: str
    ours: bool


class Curve(NamedTuple):
    """Speed ratios of many cases: above 1, Tilesmith is faster."""

    title: str
    ratios: Sequence[float]
    rival: str

    def in_words(self) -> tuple[str, str]:
        ratios = sorted(self.ratios)
        ahead = sum(ratio > 1 / EVEN for ratio in ratios)
        behind = sum(ratio < EVEN for ratio in ratios)
        extremes = f"median {figure(median(ratios))}, worst {figure(ratios[0])}, best {figure(ratios[-1])}"
        return (
            f"more than 3 % faster in {ahead}, more than 3 % slower in {behind}",
            f"{self.rival} time / Tilesmith's: {extremes}",
        )

    def described(self) -> str:
        return f"{self.title}: {'; '.join(self.in_words())}"


class Headlines(NamedTuple):
    """What the chart shows: a title and bars for each model, and curves."""

    groups: list[tuple[str, list[Bar]]]
    curves: list[Curve]


def headlines(models: Mapping[str, Result], drawn: Sequence[float], contests: Sequence[Contest]) -> Headlines | None:
    """Return what is stored for the chart; None where a part of it is not. `models` is by file name.

    `drawn` are the ratios of the surveys, PyTorch's time divided by that of `auto`.
    """
    groups = [group for group in _groups(_newest_first(models)) if group[1]]
    named = list(speed_ratios(contests))
    if not groups or not named or not drawn:
        return None
    return Headlines(
        groups,
        [
            Curve(f"{len(drawn)} calls of random sizes, auto beside PyTorch", drawn, "PyTorch's"),
            Curve(f"{len(named)} benchmark cases, each beside its fastest rival", named, "the rival's"),
        ],
    )


def headline_chart(found: Headlines, models: Mapping[str, Result]) -> str:
    """Return the chart as SVG."""
    curves = [line for number, curve in enumerate(found.curves) for line in _curve(curve, 34 + CURVES_APART * number)]
    body = [*_bars(found.groups), *curves, *_provenance(_newest_first(models))]
    return svg(WIDTH, HEIGHT, _described(found), body)


def headline_list(found: Headlines) -> str:
    """Return the chart's figures as a list in Markdown."""
    lines = [
        f"- {title}: " + "; ".join(_emphasised(bar) for bar in sorted(bars, key=lambda bar: not bar.ours))
        for title, bars in found.groups
    ]
    return "\n".join([*lines, *(f"- {curve.described()}" for curve in found.curves)])


def _newest_first(models: Mapping[str, Result]) -> list[Result]:
    return sorted(models.values(), key=lambda one: str(one.get("date")), reverse=True)


def _emphasised(bar: Bar) -> str:
    text = f"{bar.label} {duration(bar.milliseconds)} and {bar.note}"
    return f"**{text}**" if bar.ours else text


def speed_ratios(contests: Iterable[Contest]) -> Iterator[float]:
    """Yield the best rival's time divided by ours, for each contest that both finished with a right result."""
    for contest in contests:
        ours, rival = contest.ours, contest.best_rival
        if ours is not None and rival is not None:
            yield float(rival["device_ms"]) / float(ours["device_ms"])


def _groups(newest_first: Sequence[Result]) -> Iterator[tuple[str, list[Bar]]]:
    """Yield a title and its bars for each model; a version comes from the newest run that has it."""
    names = {
        "transformers": "transformers", "compile": "torch.compile", "liger": "Liger", "tilesmith": "Tilesmith",
    }  # fmt: skip
    title = "Training step of a Llama with 1.2 billion parameters; eager, but for torch.compile"
    yield title, _of_rows(newest_first, "llama-1b", names, "milliseconds")
    names = {"torch": "PyTorch", "compile": "torch.compile", "tilesmith": "Tilesmith"}
    block = _of_rows(newest_first, "evoformer-block", names, "graph_milliseconds")
    yield "Evoformer block of 256 residues; forward and backward, each as a CUDA graph", block
    found = next((one for one in newest_first if one.get("model") == "openfold"), None)
    variants = {one["variant"]: one for one in (found or {}).get("variants", ())}
    labels = {"v1": "PyTorch", "v2": "fused PyTorch", "v4": "Tilesmith"}
    chosen = labels if set(labels) <= set(variants) else {}
    yield (
        "Training step of Tiny OpenFold; Tilesmith as a CUDA graph",
        [
            Bar(label, variants[name]["step_ms"], memory(variants[name]["peak_bytes"]), name == "v4")
            for name, label in chosen.items()
        ],
    )


def _of_rows(newest_first: Sequence[Result], model: str, names: Mapping[str, str], key: str) -> list[Bar]:
    rows: dict[str, Result] = {}
    for result in newest_first:
        for row in result.get("rows", ()) if result.get("model") == model else ():
            rows.setdefault(row["version"], row)
    return [
        Bar(label, rows[name][key], memory(rows[name]["peak_bytes"]), label == "Tilesmith")
        for name, label in names.items()
        if key in rows.get(name, {})
    ]


def _bars(groups: Sequence[tuple[str, Sequence[Bar]]]) -> Iterator[str]:
    y = 34
    for title, bars in groups:
        what, _, how = title.partition("; ")
        yield f'<text class="title" x="24" y="{y}">{escape(what)}</text>'
        y += 18
        yield f'<text class="quiet" x="24" y="{y}">{escape(how)}</text>'
        longest = max(bar.milliseconds for bar in bars)
        for bar in bars:
            y += 24
            width = BARS_WIDTH * bar.milliseconds / longest
            kind = "ours" if bar.ours else "rival"
            yield f'<text x="{BARS_LEFT - 10}" y="{y}" text-anchor="end">{escape(bar.label)}</text>'
            yield f'<rect class="{kind}" x="{BARS_LEFT}" y="{y - 12}" width="{width:.1f}" height="15" rx="2"/>'
            text = f"{duration(bar.milliseconds)}, {bar.note}"
            yield f'<text x="{BARS_LEFT + width + 8:.1f}" y="{y}">{escape(text)}</text>'
        y += 34


def _curve(curve: Curve, y: int) -> Iterator[str]:
    yield f'<text class="title" x="{CURVES_LEFT}" y="{y}">{escape(curve.title)}</text>'
    for number, line in enumerate(curve.in_words()):
        yield f'<text class="quiet" x="{CURVES_LEFT}" y="{y + 18 + 16 * number}">{escape(line)}</text>'
    yield from ratio_columns(Area(CURVES_LEFT + 42, WIDTH - 24, y + 48, y + 48 + CURVE_HEIGHT), curve.ratios)


def _provenance(newest_first: Sequence[Result]) -> Iterator[str]:
    newest = newest_first[0]
    first, last = (str(one.get("date"))[:10] for one in (newest_first[-1], newest))
    when = first if first == last else f"{first} to {last}"
    made = f"{newest.get('device')}, PyTorch {newest.get('torch')}, {when}, from benchmarks/results."
    text = escape(f"{made} Operators and the block are CUDA-graph replays.")
    yield f'<text class="quiet" x="24" y="{HEIGHT - 16}">{text}</text>'


def _described(found: Headlines) -> str:
    bars = [
        f"{title}: " + ", ".join(f"{bar.label} {duration(bar.milliseconds)} and {bar.note}" for bar in group)
        for title, group in found.groups
    ]
    return ". ".join([*bars, *(curve.described() for curve in found.curves)]) + "."
