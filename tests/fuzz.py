"""Call every operator with drawn arguments: `python tests/fuzz.py --calls 1000`. References written anew judge.

Counts the calls that are right, wrong, refused with a clear sentence, or end in an internal error. Prints every wrong
call and every internal error with the seed that draws it again: `--seed S --only OPERATOR --calls 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
KINDS = ("right", "wrong", "refused", "error")
CLEAN_UP_EVERY = 500


def main() -> int:
    options = _options()
    start, counts, findings = time.perf_counter(), Counter[tuple[str, str]](), list[str]()
    for done, (name, seed, kind, text) in enumerate(_verdicts(options), 1):
        counts[name, kind] += 1
        if kind in ("wrong", "error") or options.verbose:
            print(f"{kind} --seed {seed} --only {name}: {text[:1500]}", flush=True)
        if kind in ("wrong", "error"):
            findings.append(f"{kind} --seed {seed} --only {name}: {text[:1500]}")
        over = time.perf_counter() - start > options.seconds
        if options.json and done % 200 == 0:
            _store(options.json, counts, findings, time.perf_counter() - start)
        if over:
            break
    _report(counts, time.perf_counter() - start)
    if options.json:
        _store(options.json, counts, findings, time.perf_counter() - start)
    return 1 if any(kind in ("wrong", "error") for _, kind in counts) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=1000, help="how many calls")
    parser.add_argument("--seed", type=int, default=0, help="the first call's seed; every call has the next one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further call after this time")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--only", help="one operator, as in `attention` or `fold.triangle_attention`")
    parser.add_argument("--route", choices=["interpret", "torch"], help="who computes; by default drawn")
    parser.add_argument("--json", type=Path, help="store the counts in this file, after every 200 calls too")
    parser.add_argument("--verbose", action="store_true", help="print every call")
    return parser.parse_args()


def _verdicts(options: argparse.Namespace) -> Iterator[tuple[str, int, str, str]]:
    from drawn.verdict import CALLS

    if options.only and options.only not in CALLS:
        sys.exit(f"fuzz: --only is {options.only!r}, but must be one of {', '.join(CALLS)}")
    names = [options.only] if options.only else list(CALLS)
    seeds = range(options.seed, options.seed + options.calls)
    tasks = ((names[seed % len(names)], seed, options.route) for seed in seeds)
    if options.jobs == 1:
        yield from map(_tried, tasks)
        return
    with get_context("spawn").Pool(options.jobs, maxtasksperchild=None) as pool:
        yield from pool.imap_unordered(_tried, tasks, chunksize=20)


def _tried(task: tuple[str, int, Any]) -> tuple[str, int, str, str]:
    from drawn.verdict import judged

    name, seed, route = task
    verdict = judged(name, random.Random(f"{name} {seed}").choice, route)
    return name, seed, verdict.kind, verdict.text


def _report(counts: Counter[tuple[str, str]], seconds: float) -> None:
    names = sorted({name for name, _ in counts})
    width = max(map(len, names))
    print(f"{'':{width}}  {'  '.join(f'{kind:>7}' for kind in KINDS)}")
    for name in names:
        print(f"{name:{width}}  {'  '.join(f'{counts[name, kind]:7,}' for kind in KINDS)}")
    totals = {kind: sum(counts[name, kind] for name in names) for kind in KINDS}
    print(f"{'in all':{width}}  {'  '.join(f'{totals[kind]:7,}' for kind in KINDS)}  in {seconds:.0f} s")


def _store(path: Path, counts: Counter[tuple[str, str]], findings: list[str], seconds: float) -> None:
    table = {name: {kind: counts[name, kind] for kind in KINDS} for name in sorted({name for name, _ in counts})}
    totals = {kind: sum(row[kind] for row in table.values()) for kind in KINDS}
    stored = {"calls": sum(totals.values()), "seconds": round(seconds), **totals, "findings": findings}
    path.write_text(json.dumps({**stored, "operators": table}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
