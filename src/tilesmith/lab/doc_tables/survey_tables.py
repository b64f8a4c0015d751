"""The table and the curves of the stored surveys: what to expect on sizes that nobody tuned for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from tilesmith.lab.bench.output.contests import MODES
from tilesmith.lab.doc_tables.ratio_columns import EVEN, Area, ratio_columns, svg
from tilesmith.lab.report.number_format import figure

SURVEYS = Path("benchmarks/surveys")
MARKER = "survey"
LARGE_BYTES = 64 << 20  # that a case moves at least, to be compared with the copy limit

PANEL_WIDTH, PANEL_HEIGHT, PANELS_IN_A_ROW = 307, 210, 3

Ratios = list[float]


class Row(NamedTuple):
    """One direction of one operator in its newest survey."""

    ratios: Ratios  # PyTorch's time / the time of auto
    ours: Ratios  # PyTorch's time / the time of our kernels
    shares: Ratios  # of the copy limit, by our kernels in large cases


class Surveyed(NamedTuple):
    """The newest stored survey of each operator and direction, and the names of the files."""

    rows: dict[tuple[str, str], Row]
    sources: list[str]

    def ratios(self, op: str | None = None) -> Ratios:
        """Return PyTorch's time / the time of auto: both directions of one operator, or of all."""
        return [ratio for (name, _), row in self.rows.items() if op in (None, name) for ratio in row.ratios]


def surveyed(root: Path) -> Surveyed | None:
    """Return the newest survey of each operator; None without a survey in which `auto` was timed."""
    rows: dict[tuple[str, str], Row] = {}
    sources: dict[str, None] = {}
    for path, survey in sorted(_surveys(root), key=lambda one: str(one[1]["date"]), reverse=True):
        for key, row in _rows(survey).items():
            if key not in rows:
                rows[key] = row
                sources[path.name] = None
    return Surveyed(dict(sorted(rows.items())), list(sources)) if rows else None


def survey_table(found: Surveyed) -> str:
    """Return the table and where it comes from."""
    heads = ("operator", "direction", "cases", "PyTorch / auto, mean", "worst", "even or ahead", "PyTorch / ours, mean",
             "of the copy limit, median")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 6]
    lines += [f"| {' | '.join(_cells(*key, row))} |" for key, row in found.rows.items()]
    named = ", ".join(f"`{SURVEYS}/{name}`" for name in found.sources)
    return "\n".join([*lines, "", f"<sub>Each row from the newest stored survey of its operator: {named}</sub>"])


def survey_chart(found: Surveyed, operators: Sequence[str] = ()) -> str:
    """Return a curve for each operator, or for those named, as SVG: every drawn call beside PyTorch."""
    names = list(operators) or list(dict.fromkeys(op for op, _ in found.rows))
    columns = min(len(names), PANELS_IN_A_ROW)
    height = PANEL_HEIGHT * -(-len(names) // columns)
    body: list[str] = []
    for number, name in enumerate(names):
        left, top = PANEL_WIDTH * (number % columns), PANEL_HEIGHT * (number // columns)
        ratios = found.ratios(name)
        body += [
            f'<text class="title" x="{left + 20}" y="{top + 28}">{name}</text>',
            f'<text class="quiet" x="{left + 20}" y="{top + 46}">{_in_words(ratios)}</text>',
            *ratio_columns(Area(left + 56, left + PANEL_WIDTH - 16, top + 60, top + PANEL_HEIGHT - 16), ratios),
        ]
    described = "PyTorch's time / the time of auto, forward and backward. " + ". ".join(
        f"{name}: {_in_words(found.ratios(name))}" for name in names
    )
    return svg(PANEL_WIDTH * columns, height, described, body)


def _in_words(ratios: Ratios) -> str:
    even = sum(ratio >= EVEN for ratio in ratios)
    return f"{len(ratios)} calls, {even} even or ahead, worst {figure(min(ratios))} ×"


def _surveys(root: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for path in sorted((root / SURVEYS).glob("*.json")):
        survey = json.loads(path.read_text(encoding="utf-8"))
        if survey.get("kind") == "survey":
            yield path, survey


def _rows(survey: Mapping[str, Any]) -> dict[tuple[str, str], Row]:
    found: dict[tuple[str, str], Row] = defaultdict(lambda: Row([], [], []))
    for case in survey["cases"]:
        for mode, direction in case["directions"].items():
            times = direction["device_ms"]
            if not {"torch", "auto", "tilesmith"} <= set(times):
                continue
            row = found[case["op"], mode]
            row.ratios.append(times["torch"] / times["auto"])
            row.ours.append(times["torch"] / times["tilesmith"])
            if direction["copy_ms"] and direction["bytes"] >= LARGE_BYTES:
                row.shares.append(direction["copy_ms"] / times["tilesmith"])
    return dict(found)


def _cells(op: str, mode: str, row: Row) -> list[str]:
    even = sum(ratio >= EVEN for ratio in row.ratios)
    shares = sorted(row.shares) if op not in ("matmul", "attention", "triangle_attention", "triangle_multiply") else []
    return [
        op, MODES.get(mode, mode), str(len(row.ratios)), f"{figure(geometric_mean(row.ratios))} ×",
        f"{figure(min(row.ratios))} ×", f"{even} of {len(row.ratios)}", f"{figure(geometric_mean(row.ours))} ×",
        f"{shares[len(shares) // 2]:.0%}" if shares else "–",
    ]  # fmt: skip
