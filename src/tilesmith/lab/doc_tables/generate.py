"""Generate the tables and the charts of README and docs from stored results.

Run `python -m tilesmith.lab.doc_tables.generate`.

Two comments in a page mark the place of a table; everything between them is replaced:

    <!-- figures: rms_norm -->
    <!-- end figures -->
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tilesmith import storage
from tilesmith.lab.bench.output.contests import MODES, Contest, contests, duration_with_spread, has_valid_time
from tilesmith.lab.bench.result import OURS
from tilesmith.lab.doc_tables.headline_chart import headline_chart, headline_list, headlines
from tilesmith.lab.doc_tables.model_tables import PREFIX, PROOFS, model_tables, proof_table
from tilesmith.lab.doc_tables.survey_tables import MARKER as SURVEY
from tilesmith.lab.doc_tables.survey_tables import survey_chart, survey_table, surveyed
from tilesmith.lab.report.number_format import duration, figure, percent

RESULTS = Path("benchmarks/results")
CHART = Path("docs/images/headline.svg")
SURVEY_CHART = Path("docs/images/survey.svg")
NOT_MEASURED = "_Not measured yet._"
HEADLINES = "headlines"  # the marker of the chart's figures as a list
HOST_TIMES = "host-times"
PROVEN = "proofs"
_OPENING = re.compile(r"<!-- figures: (?P<op>[\w.-]+(?: [\w.-]+)*) -->")
_CLOSING = "<!-- end figures -->"


class FiguresError(Exception):
    """A page or a stored result is wrong. The message is one line."""


@dataclass(frozen=True)
class Stored:
    """A result of `tilesmith bench --json`, and the name of its file."""

    name: str
    result: Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="figures", description="Regenerate the figures of README.md and docs/.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    chosen = parser.parse_args(arguments)
    try:
        outdated = _outdated(chosen.root)
    except FiguresError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    for page, text in outdated.items():
        if not chosen.check:
            storage.write_atomically(page, text)
        print(f"{page}: {'out of date; run `make figures`' if chosen.check else 'written'}")
    return 1 if outdated and chosen.check else 0


def _outdated(root: Path) -> dict[Path, str]:
    """Return the pages whose tables are out of date, and the charts that are, with their new text."""
    stored = [_read(path) for path in sorted((root / RESULTS).glob("*.json"))]
    models = {path.name: _read_model(path) for path in sorted((root / RESULTS / "models").glob("*.json"))}
    pages = [path for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if path.is_file()]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    met = [contest for op in _operators(stored) for _, group in newest(op, stored) for contest in group]
    drawn = surveyed(root)
    found = headlines(models, drawn.ratios() if drawn else [], met)
    lists, charts = {HEADLINES: NOT_MEASURED, SURVEY: NOT_MEASURED, HOST_TIMES: host_times(stored)}, {}
    proofs = {path.name: _read_model(path) for path in sorted((root / PROOFS).glob("*.json"))}
    lists[PROVEN] = proof_table(proofs) or NOT_MEASURED
    if found:
        lists[HEADLINES], charts[root / CHART] = headline_list(found), headline_chart(found, models)
    if drawn:
        lists[SURVEY], charts[root / SURVEY_CHART] = survey_table(drawn), survey_chart(drawn)
    renewed = {page: _renewed(text, stored, models, lists, str(page)) for page, text in texts.items()} | charts
    texts |= {path: path.read_text(encoding="utf-8") if path.is_file() else "" for path in charts}
    return {page: text for page, text in renewed.items() if text != texts[page]}


def _read(path: Path) -> Stored:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return Stored(path.name, {**result, "rows": list(result["rows"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FiguresError(f"{path} is not a result of `tilesmith bench --json`: {error!r}") from error


def _read_model(path: Path) -> Mapping[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return {**result, "model": result["model"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FiguresError(f"{path} is not a result of a model: {error!r}") from error


def _renewed(
    text: str, stored: Sequence[Stored], models: Mapping[str, Mapping[str, Any]], lists: Mapping[str, str], page: str
) -> str:
    parts, rest = [], text
    while opening := _OPENING.search(rest):
        end = rest.find(_CLOSING, opening.end())
        following = _OPENING.search(rest, opening.end())
        if end < 0 or (following and following.start() < end):
            raise FiguresError(f"{page}: {opening.group()} is not followed by {_CLOSING}")
        name = opening["op"]
        if name.startswith(PREFIX):
            made = model_tables(name.removeprefix(PREFIX), models) or NOT_MEASURED
        else:
            made = lists.get(name) or tables(name, stored)
        parts += [rest[: opening.end()], "\n", made, "\n"]
        rest = rest[end:]
    return "".join([*parts, rest])


def tables(op: str, stored: Sequence[Stored]) -> str:
    """Return the newest measurements of an operator, device by device: one table per run, with its provenance.

    Cases that the newest run did not measure follow in a table of an older run.
    """
    made: dict[str, list[str]] = {}
    for one, group in newest(op, stored):
        made.setdefault(str(one.result.get("device")), []).append(_table(one, group))
    return "\n\n".join(table for device in sorted(made) for table in made[device]) or NOT_MEASURED


def host_times(stored: Sequence[Stored]) -> str:
    """Return the CPU time of a call of each operator: medians over the cases of its newest runs."""
    lines = ["| operator | forward | PyTorch's | with backward | PyTorch's |", "|---|---:|---:|---:|---:|"]
    for op in _operators(stored):
        rows = [row for _, group in newest(op, stored) for contest in group for row in contest.rows]
        times = [[row["host_us"] for row in rows
                  if (row["mode"], row["provider"]) == (mode, provider) and row.get("host_us") is not None]
                 for mode in ("fwd", "bwd") for provider in (OURS, "torch")]  # fmt: skip
        if times[0]:
            lines.append(f"| {op} | {' | '.join(f'{median(one):.0f}' if one else '–' for one in times)} |")
    return "\n".join(lines) if len(lines) > 2 else NOT_MEASURED


def newest(op: str, stored: Sequence[Stored]) -> Iterator[tuple[Stored, list[Contest]]]:
    """Yield the runs of an operator, newest first, each with the contests that no newer run of its device has."""
    newest_first = sorted(stored, key=lambda one: (str(one.result.get("date")), one.name), reverse=True)
    shown: set[tuple[str, str, str]] = set()
    for one in newest_first:
        if not any(row["op"] == op and has_valid_time(row) for row in one.result["rows"]):
            continue
        device = str(one.result.get("device"))
        all_contests = [contest for contest in contests(one.result) if contest.op == op and _is_measured(contest)]
        all_contests = [contest for contest in all_contests if (device, contest.size, contest.mode) not in shown]
        shown |= {(device, contest.size, contest.mode) for contest in all_contests}
        if all_contests:
            yield one, all_contests


def _operators(stored: Sequence[Stored]) -> list[str]:
    """Return the names of all operators in the stored results."""
    return sorted({str(row["op"]) for one in stored for row in one.result["rows"]})


def _table(stored: Stored, all_contests: Sequence[Contest]) -> str:
    headings = ("case", "direction", "tilesmith", "TB/s", "TFLOP/s", "of limit", "best rival", "its time", "beside it")
    lines = [
        f"| {' | '.join(headings)} |",
        "|---|---|" + "---:|" * 4 + "---|---:|---:|",
        *(f"| {' | '.join(_cells(contest))} |" for contest in all_contests),
    ]
    return "\n".join([*lines, "", _provenance(stored, all_contests)])


def _is_measured(contest: Contest) -> bool:
    return any(row["provider"] == OURS and row.get("kind") == "measured" for row in contest.rows)


def _cells(contest: Contest) -> list[str]:
    ours, rival = contest.ours or {}, contest.best_rival
    return [
        contest.size,
        MODES.get(contest.mode, contest.mode),
        duration_with_spread(ours) if ours else "failed: no time",
        figure(ours.get("tb_per_s")),
        figure(ours.get("tflop_per_s")),
        percent(ours.get("percent_of_limit")),
        rival["provider"] if rival else "none",
        duration(rival["device_ms"]) if rival else "–",
        _beside(contest),
    ]


def _beside(contest: Contest) -> str:
    ours, rival = contest.ours, contest.best_rival
    if ours is None or rival is None:
        return "–"
    if contest.standing == "equal":
        return "equal"
    slower, faster = sorted((ours["device_ms"], rival["device_ms"]), reverse=True)
    return f"{slower / faster:.2f} × {contest.standing}"


def _provenance(stored: Stored, all_contests: Sequence[Contest]) -> str:
    result = stored.result
    copy = (result.get("limits") or {}).get("copy_tb_per_s")
    throttled = any(row.get("throttled") for contest in all_contests for row in contest.rows)
    parts = [
        f"{result.get('device')}, driver {result.get('driver')}",
        f"PyTorch {result.get('torch')}, Triton {result.get('triton')}",
        f"commit {str(result.get('commit'))[:12]}",
        str(result.get("date"))[:10],
        f"copy limit {figure(copy, 'TB/s')}",
        *(["a run that was stopped before its end"] if result.get("partial") else []),
        *(["the GPU was throttled in part of it"] if throttled else []),
        f"`{RESULTS.as_posix()}/{stored.name}`",
    ]
    return f"<sub>Measured by `tilesmith bench`: {'; '.join(parts)}</sub>"


if __name__ == "__main__":
    sys.exit(main())
