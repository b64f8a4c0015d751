"""The table of the stored surveys: what to expect on sizes that nobody tuned for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from tilesmith.lab.bench.output.contests import MODES
from tilesmith.lab.report.number_format import figure

SURVEYS = Path("benchmarks/surveys")
MARKER = "survey"
EVEN = 1 / 1.03  # a case this far behind PyTorch, or less, counts as even
LARGE_BYTES = 64 << 20  # that a case moves at least, to be compared with the copy limit

Ratios = list[float]


class Row(NamedTuple):
    """One direction of one operator in its newest survey."""

    ratios: Ratios  # PyTorch's time / the time of auto
    ours: Ratios  # PyTorch's time / the time of our kernels
    shares: Ratios  # of the copy limit, by our kernels in large cases


def survey_table(root: Path) -> str | None:
    """Return the table and where it comes from; None without a survey in which `auto` was timed."""
    rows: dict[tuple[str, str], Row] = {}
    sources: dict[str, None] = {}
    for path, survey in sorted(_surveys(root), key=lambda one: str(one[1]["date"]), reverse=True):
        for key, row in _rows(survey).items():
            if key not in rows:
                rows[key] = row
                sources[path.name] = None
    if not rows:
        return None
    heads = ("operator", "direction", "cases", "PyTorch / auto, mean", "worst", "even or ahead", "PyTorch / ours, mean",
             "of the copy limit, median")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 6]
    lines += [f"| {' | '.join(_cells(*key, row))} |" for key, row in sorted(rows.items())]
    named = ", ".join(f"`{SURVEYS}/{name}`" for name in sources)
    return "\n".join([*lines, "", f"<sub>Each row from the newest stored survey of its operator: {named}</sub>"])


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
