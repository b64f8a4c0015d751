"""README's chart: training steps of whole models, and every stored case beside its fastest rival.

The chart is one SVG file without scripts or external fonts. It brings its own background, so its text is readable on
light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2
from typing import Any

from tilesmith.lab.bench.output.contests import Contest
from tilesmith.lab.report.number_format import duration, figure, memory

WIDTH, HEIGHT = 920, 372
BARS_LEFT, BARS_WIDTH = 150, 200  # where bars start, and the longest bar
CURVE_LEFT, CURVE_RIGHT, CURVE_TOP, CURVE_BOTTOM = 560, 896, 96, 296
LEAST, MOST = 0.5, 8.0  # the range of the curve's axis; values beyond are drawn at its end

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", sans-serif; fill: #1b1d1f; }
  .card { fill: #fcfcfa; stroke: #dcdcd5; }
  .title { font-weight: 650; }
  .quiet { fill: #5c6166; font-size: 11.5px; }
  .ours { fill: #0b6470; }
  .rival { fill: #b9bdb9; }
  .grid { stroke: #dcdcd5; }
  .even { stroke: #5c6166; stroke-dasharray: 4 3; }
  .win { fill: #0b6470; fill-opacity: 0.8; }
  .loss { fill: #c2410c; fill-opacity: 0.8; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e7e6e2; }
    .card { fill: #15171a; stroke: #34383d; }
    .quiet { fill: #a2a7ad; }
    .ours { fill: #6cc5cf; }
    .rival { fill: #565b61; }
    .grid { stroke: #34383d; }
    .even { stroke: #a2a7ad; }
    .win { fill: #6cc5cf; }
    .loss { fill: #ff9b66; }
  }
"""  # noqa: E501

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """One version of a model: its name, its time, and what else is worth saying."""

    label: str
    milliseconds: float
    note: str
    ours: bool


def headline_chart(models: Mapping[str, Result], contests: Sequence[Contest]) -> str | None:
    """Return the chart as SVG; None where the results for it are not stored. `models` is by file name."""
    newest_first = sorted(models.values(), key=lambda one: str(one.get("date")), reverse=True)
    groups = [group for group in _groups(newest_first) if group[1]]
    ratios = sorted(speed_ratios(contests))
    if not groups or not ratios:
        return None
    body = [*_bars(groups), *_curve(ratios), *_provenance(newest_first)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'role="img" aria-label="{escape(_described(groups, ratios), quote=True)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def headline_list(models: Mapping[str, Result], contests: Sequence[Contest]) -> str | None:
    """Return the chart's figures as a list in Markdown; None where the results for it are not stored."""
    newest_first = sorted(models.values(), key=lambda one: str(one.get("date")), reverse=True)
    groups = [group for group in _groups(newest_first) if group[1]]
    ratios = sorted(speed_ratios(contests))
    if not groups or not ratios:
        return None
    lines = [
        f"- {title}: " + "; ".join(_emphasised(bar) for bar in sorted(bars, key=lambda bar: not bar.ours))
        for title, bars in groups
    ]
    return "\n".join([*lines, f"- {_cases_in_words(ratios)}"])


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
    names = {"transformers": "transformers", "liger": "Liger", "tilesmith-with-its-adamw": "Tilesmith"}
    yield (
        "Training step of a Llama with 1.2 billion parameters; Tilesmith with its AdamW",
        _of_rows(newest_first, "llama-1b", names, "milliseconds"),
    )
    names = {"torch": "PyTorch", "compile": "torch.compile", "tilesmith": "Tilesmith"}
    block = _of_rows(newest_first, "evoformer-block", names, "graph_milliseconds")
    yield "Evoformer block of 256 residues, forward and backward, as a CUDA graph", block
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
        yield f'<text class="title" x="24" y="{y}">{escape(title)}</text>'
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


def _curve(ratios: Sequence[float]) -> Iterator[str]:
    """Yield the curve: one column per case, ordered by its ratio, on a logarithmic axis."""
    title = f"{len(ratios)} stored cases, each beside its fastest rival"
    yield f'<text class="title" x="{CURVE_LEFT - 50}" y="34">{title}</text>'
    for number, line in enumerate(_in_words(ratios)):
        yield f'<text class="quiet" x="{CURVE_LEFT - 50}" y="{54 + 17 * number}">{escape(line)}</text>'
    for tick in (0.5, 1, 2, 4, 8):
        y = _height(tick)
        kind = "even" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{CURVE_LEFT}" y1="{y:.1f}" x2="{CURVE_RIGHT}" y2="{y:.1f}"/>'
        yield f'<text class="quiet" x="{CURVE_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g} ×</text>'
    step = (CURVE_RIGHT - CURVE_LEFT) / len(ratios)
    even = _height(1)
    for number, ratio in enumerate(ratios):
        y = _height(min(max(ratio, LEAST), MOST))
        top, bottom = sorted((y, even))
        place = f'x="{CURVE_LEFT + number * step:.2f}" y="{top:.1f}" width="{step:.2f}"'
        yield f'<rect class="{"win" if ratio >= 1 else "loss"}" {place} height="{bottom - top:.1f}"/>'
    middle = (CURVE_LEFT + CURVE_RIGHT) / 2
    text = "cases, from the slowest to the fastest beside its rival"
    yield f'<text class="quiet" x="{middle}" y="{CURVE_BOTTOM + 20}" text-anchor="middle">{text}</text>'


def _in_words(ratios: Sequence[float]) -> tuple[str, str]:
    median = ratios[len(ratios) // 2]
    ahead = sum(ratio > 1.03 for ratio in ratios)
    behind = sum(ratio < 1 / 1.03 for ratio in ratios)
    return (
        f"more than 3 % faster in {ahead}, more than 3 % slower in {behind}",
        f"rival's time / ours: median {figure(median)}, worst {figure(ratios[0])}, best {figure(ratios[-1])}",
    )


def _height(ratio: float) -> float:
    share = log2(ratio / LEAST) / log2(MOST / LEAST)
    return CURVE_BOTTOM - share * (CURVE_BOTTOM - CURVE_TOP)


def _provenance(newest_first: Sequence[Result]) -> Iterator[str]:
    newest = newest_first[0]
    first, last = (str(one.get("date"))[:10] for one in (newest_first[-1], newest))
    when = first if first == last else f"{first} to {last}"
    made = f"{newest.get('device')}, PyTorch {newest.get('torch')}, {when}, from benchmarks/results."
    text = escape(f"{made} Operators and the block are CUDA-graph replays.")
    yield f'<text class="quiet" x="24" y="{HEIGHT - 16}">{text}</text>'


def _described(groups: Sequence[tuple[str, Sequence[Bar]]], ratios: Sequence[float]) -> str:
    """Return the chart in words, for readers who do not see it."""
    bars = [
        f"{title}: " + ", ".join(f"{bar.label} {duration(bar.milliseconds)} and {bar.note}" for bar in group)
        for title, group in groups
    ]
    return ". ".join([*bars, _cases_in_words(ratios)]) + "."


def _cases_in_words(ratios: Sequence[float]) -> str:
    return f"{len(ratios)} stored cases beside the fastest rival: {'; '.join(_in_words(ratios))}"
