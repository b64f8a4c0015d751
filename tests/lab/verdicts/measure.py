"""Measure how often `check` refuses a right implementation, and how often it finds a fault.

    python tests/lab/verdicts/measure.py --seeds 10000 --jobs 8 --json tests/lab/verdicts/rates.json

runs plain implementations of every operator and exercise in every summation order, and every fault at several seeds,
and stores the rates every ten seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

sys.path.insert(0, str(Path(__file__).parent))

from faults import faults
from subjects import Problem, problem_of, small_cases, subjects
from summation_orders import ORDERS, Summing

RATES = Path(__file__).with_name("rates.json")
STORED_EVERY = 10.0  # seconds
Found = tuple[str, int, dict[str, float], list[str], dict[str, bool]]


def refusals(problem: Problem) -> tuple[dict[str, float], list[str]]:
    """Return the share of the allowed error that each summation order needs, and the orders that are refused."""
    used, refused = {}, []
    for name, order in ORDERS.items():
        right, used[name] = problem.verdict(problem.spec.reference, Summing(order))
        if not right:
            refused.append(f"{problem.spec.name} {problem.case.name} {problem.dtype} seed {problem.seed}, {name}")
    return used, refused


def found_faults(problem: Problem) -> dict[str, bool]:
    """Return, for each fault of a problem, whether the verdict finds it."""
    return {fault.name: not problem.verdict(fault.function, fault.mode)[0] for fault in faults(problem)}


def found_at(number: int, seed: int, with_faults: bool) -> Found:
    """Return what becomes of one subject's right implementations at one seed, and of its faults in all small cases."""
    spec = subjects()[number]
    used, refused = refusals(problem_of(spec, seed))
    found: dict[str, bool] = {}
    if with_faults:
        for case in small_cases(spec):
            for dtype in spec.dtypes:
                for fault, seen in found_faults(Problem(spec, case, dtype, seed)).items():
                    found[fault] = found.get(fault, False) or seen
    return spec.name, seed, used, refused, found


class Rates:
    """Both rates: of refused right implementations, and of found faults."""

    def __init__(self) -> None:
        self._seeds = self._verdicts = 0
        self.refused: list[str] = []
        self._largest: dict[str, float] = defaultdict(float)
        self._faults: dict[str, dict[str, bool]] = defaultdict(dict)

    def add(self, found: Found) -> None:
        name, seed, used, refused, faults_found = found
        self._seeds += 1
        self._verdicts += len(used)
        self.refused += refused
        self._largest[name] = max(self._largest[name], *used.values())
        for fault, seen in faults_found.items():
            self._faults[fault][f"{name}, seed {seed}"] = seen

    @property
    def missed(self) -> dict[str, list[str]]:
        """The subjects and seeds at which a fault is not found, by fault."""
        return {
            fault: [one for one, found in seen.items() if not found]
            for fault, seen in sorted(self._faults.items())
            if not all(seen.values())
        }

    def as_json(self) -> dict[str, Any]:
        return {
            **_about(),
            "seeds": self._seeds,
            "verdicts": self._verdicts,
            "refused": self.refused,
            "largest_share_of_allowed": dict(sorted(self._largest.items(), key=lambda one: -one[1])),
            "faults": {
                fault: {"found": sum(seen.values()), "of": len(seen), "missed": self.missed.get(fault, [])}
                for fault, seen in sorted(self._faults.items())
            },
        }


def _about() -> dict[str, str]:
    """Return what was measured, and on which machine."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = (
        os.environ.get("TILESMITH_COMMIT") or subprocess.run(command, capture_output=True, text=True).stdout.strip()
    )
    return {
        "machine": f"{platform.system()} {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, "
        f"torch {torch.__version__}",
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def tasks(first: int, seeds: int, with_faults: int, only: Sequence[str] = ()) -> Iterator[tuple[int, int, bool]]:
    """Yield the number of a subject, a seed, and whether faults are tried: at its first seeds. Subjects take turns."""
    chosen = [number for number, spec in enumerate(subjects()) if not only or spec.name in only]
    for done in range(-(-seeds // len(subjects()))):
        for number in chosen:
            yield number, first + done, done < with_faults


def measured(all_tasks: Iterable[tuple[int, int, bool]], jobs: int = 1) -> Iterator[Found]:
    """Yield what each task finds."""
    if jobs == 1:
        yield from map(_done, all_tasks)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_done, all_tasks)


def _done(task: tuple[int, int, bool]) -> Found:
    warnings.simplefilter("ignore")
    return found_at(*task)


def summary(rates: dict[str, Any]) -> str:
    """Return the table for docs/check.md."""
    subjects_tried = len(rates["largest_share_of_allowed"])
    lines = [
        f"| {len(rates['refused'])} of {rates['verdicts']:,} right implementations refused "
        f"({rates['seeds']:,} seeds, {subjects_tried} operators and exercises, {len(ORDERS)} summation orders) | |",
        "|---|---|",
        "| **fault** | **found in** |",
        *(f"| {name} | {one['found']} of {one['of']} |" for name, one in rates["faults"].items()),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="each subject's first seed")
    parser.add_argument("--faults", type=int, default=8, help="how many seeds of each subject try faults too")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--only", nargs="*", default=[], help="measure these subjects only")
    parser.add_argument("--json", type=Path, help=f"store the rates here: {RATES.name} is what docs/check.md shows")
    options = parser.parse_args()
    rates = Rates()
    start = stored = time.monotonic()
    for found in measured(tasks(options.first, options.seeds, options.faults, options.only), options.jobs):
        rates.add(found)
        now = time.monotonic()
        if options.json and now - stored > STORED_EVERY:
            options.json.write_text(json.dumps(rates.as_json(), indent=1) + "\n")
            stored = now
        if now - start > options.seconds:
            break
    print(json.dumps(rates.as_json(), indent=1))
    if options.json:
        options.json.write_text(json.dumps(rates.as_json(), indent=1) + "\n")


if __name__ == "__main__":
    main()
