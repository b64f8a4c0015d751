"""Judge every candidate of tests/judge/zoo, store the rates, and write them into docs/judge.md."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import torch
import triton

from tilesmith.lab.judge import Candidate, Judge, Options, Rules, Task, task_at
from tilesmith.lab.judge.output.content import headline
from tilesmith.lab.judge.series import judge_series

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "tests" / "judge" / "zoo"
SEED = 5
JOBS = 2


def main() -> None:
    outcomes: dict[str, Counter[str]] = {"cheats": Counter(), "honest": Counter()}
    refused: list[str] = []
    started = time.monotonic()
    with Judge() as judge:
        for kind, counts in outcomes.items():
            for folder in sorted(one for one in (ZOO / kind).iterdir() if one.is_dir()):
                task = task_of(folder.name)
                paths = candidates_in(folder)
                for facts in (False, True):
                    chosen = [one for one in paths if (kind == "honest" or needs_compiler(one)) == facts]
                    options = Options(seed=SEED, facts=facts)
                    found = judge_series(task, map(Candidate.of, chosen), options=options, judge=judge, jobs=JOBS)
                    for path, verdict in zip(chosen, found, strict=True):
                        outcome = verdict["outcome"]
                        counts[outcome] += 1
                        if is_misjudged(kind, outcome):
                            refused.append(f"{kind}/{folder.name}/{path.stem}: {headline(verdict)}")
                print(kind, folder.name, dict(counts), refused[-3:], flush=True)
    stored = {
        "seed": SEED,
        "device": "CPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "jobs": JOBS,
        "seconds": round(time.monotonic() - started, 1),
        "outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
        "misjudged": refused,
    }
    (Path(__file__).parent / "zoo.json").write_text(json.dumps(stored, indent=1) + "\n")
    write_table(stored)


def task_of(folder: str) -> Task:
    """Return the task of a folder of the zoo. In those that end in `_with_torch`, PyTorch may compute too."""
    plain = folder.removesuffix("_with_torch")
    rules = Rules(seconds=15.0, torch="movement" if folder == plain else "any")
    return task_at(ZOO / "tasks" / f"{plain}.py", rules)


def candidates_in(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name != "__pycache__")


def is_misjudged(kind: str, outcome: str) -> bool:
    """Return whether a cheat passed, or an honest candidate did not. An open verdict on a cheat is none."""
    return outcome == "pass" if kind == "cheats" else outcome != "pass"


def commit() -> str:
    """Return the commit that was judged; empty outside of a clone."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def needs_compiler(path: Path) -> bool:
    """Return whether only the compiler finds the trick of a cheat, which the first lines of a file say."""
    text = path.read_text(errors="replace")[:500] if path.is_file() else ""
    return "compile-error" in text or "false-hint" in text


def write_table(stored: dict[str, object]) -> None:
    """Put the stored rates into the guide."""
    lines = ["| on a CPU | candidates | pass | unproven | fail |", "|---|--:|--:|--:|--:|"]
    for kind, counts in stored["outcomes"].items():  # type: ignore[attr-defined]  # written above
        numbers = [counts.get(name, 0) for name in ("pass", "unproven", "fail")]
        lines.append(f"| {kind} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    page = ROOT / "docs" / "judge.md"
    table = "<!-- zoo -->\n" + "\n".join(lines) + "\n<!-- /zoo -->"
    page.write_text(re.sub(r"<!-- zoo -->.*<!-- /zoo -->", table, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
