"""Judge every candidate of tests/judge/zoo, store the rates, and write them into docs/judge.md."""

from __future__ import annotations

import argparse
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
STORED = Path(__file__).parent / "zoo.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="candidates at once")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--store", type=Path, help="store these results, and judge nothing")
    arguments = parser.parse_args()
    if arguments.store is not None:
        STORED.write_text(arguments.store.read_text())
        write_table(json.loads(STORED.read_text()))
        return
    stored = judged(arguments.jobs)
    arguments.out.write_text(json.dumps(stored, indent=1) + "\n")
    if arguments.out == STORED:
        write_table(stored)


def judged(jobs: int) -> dict[str, object]:
    """Judge all candidates without a GPU. Return the rates, with their provenance."""
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
                    options = Options(seed=SEED, facts=facts, device="")
                    found = judge_series(task, map(Candidate.of, chosen), options=options, judge=judge, jobs=jobs)
                    for path, verdict in zip(chosen, found, strict=True):
                        outcome = verdict["outcome"]
                        counts[outcome] += 1
                        if is_misjudged(kind, outcome):
                            refused.append(f"{kind}/{folder.name}/{path.stem}: {headline(verdict)}")
                print(kind, folder.name, dict(counts), refused[-3:], flush=True)
    return {
        "seed": SEED,
        "device": "CPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "jobs": jobs,
        "seconds": round(time.monotonic() - started, 1),
        "outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
        "misjudged": refused,
    }


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
    seconds, jobs = stored["seconds"], stored["jobs"]
    lines += ["", f"The whole run took {seconds:.0f} s with {jobs} candidates at once (`benchmarks/judge/zoo.json`)."]
    page = ROOT / "docs" / "judge.md"
    table = "<!-- zoo -->\n" + "\n".join(lines) + "\n<!-- /zoo -->"
    page.write_text(re.sub(r"<!-- zoo -->.*<!-- /zoo -->", table, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
