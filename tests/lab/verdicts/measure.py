"""Measure how often `check` refuses a right implementation, and how often it finds a fault.

    python tests/lab/verdicts/measure.py --seeds 10000 --write

runs plain implementations of every operator and exercise in every summation order, and every fault, and stores the
rates in `rates.json`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from faults import faults
from subjects import Problem, problems, small_cases, subjects
from summation_orders import ORDERS, Summing

RATES = Path(__file__).with_name("rates.json")


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


def measured(seeds: int, only: Sequence[str] = (), progress: bool = False) -> dict[str, Any]:
    """Return both rates: of refused right implementations, and of found faults."""
    share = -(-seeds // len(subjects()))
    specs = [spec for spec in subjects() if not only or spec.name in only]
    refused: list[str] = []
    largest: dict[str, float] = {}
    verdicts = tried = 0
    found: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    for number, spec in enumerate(specs):
        start = time.monotonic()
        largest[spec.name] = 0.0
        for problem in problems(spec, range(share)):
            used, wrong = refusals(problem)
            tried += 1
            verdicts += len(used)
            refused += wrong
            largest[spec.name] = max(largest[spec.name], *used.values())
        for case in small_cases(spec):
            for dtype in spec.dtypes:
                for fault, seen in found_faults(Problem(spec, case, dtype, 0)).items():
                    found[fault][spec.name] = found[fault].get(spec.name, False) or seen
        if progress:
            print(f"{number + 1}/{len(specs)} {spec.name}: {largest[spec.name]:.2f} of the allowed error, "
                  f"{len(refused)} refused, {time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
    return {
        "machine": f"{platform.system()} {platform.machine()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seeds": tried,
        "verdicts": verdicts,
        "refused": refused,
        "largest_share_of_allowed": dict(sorted(largest.items(), key=lambda one: -one[1])),
        "faults": {
            name: {"found": sum(seen.values()), "of": len(seen), "missed": [one for one in seen if not seen[one]]}
            for name, seen in sorted(found.items())
        },
    }


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return old rates with those subjects replaced that were measured anew, with as many seeds and faults."""
    again = new["largest_share_of_allowed"]
    refused = [one for one in old["refused"] if not any(one.startswith(f"{name} ") for name in again)]
    shares = {**old["largest_share_of_allowed"], **again}
    return {
        **old,
        "refused": refused + new["refused"],
        "largest_share_of_allowed": dict(sorted(shares.items(), key=lambda one: -one[1])),
    }


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
    parser.add_argument("--write", action="store_true", help=f"store the rates in {RATES.name}")
    parser.add_argument("--only", nargs="*", default=[], help="measure these subjects again, with the same --seeds")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rates = measured(options.seeds, options.only, progress=True)
    if options.only:
        assert not any(one["missed"] for one in rates["faults"].values()), rates["faults"]
        rates = merged(json.loads(RATES.read_text()), rates)
    print(json.dumps(rates, indent=1))
    if options.write:
        RATES.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
