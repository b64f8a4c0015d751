"""Write the shipped tables that tell `auto` where PyTorch is faster, from stored results: `make figures`.

A test compares the tables with the results, so `auto` follows the published figures.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tilesmith import storage
from tilesmith.lab.bench.result import OURS
from tilesmith.ops import SPECS
from tilesmith.ops.runtime import tuning
from tilesmith.ops.runtime.operator import Operator
from tilesmith.spec import Case

RESULTS = Path("benchmarks/results")
PROVENANCE = ("device", "driver", "torch", "triton", "commit", "date")
Milliseconds = dict[str, dict[str, float]]  # by mode and provider


def main() -> int:
    for path, table in tables(RESULTS).items():
        storage.write_atomically(path, json.dumps(table, indent=1, ensure_ascii=False) + "\n")
        print(f"{path}: written")
    return 0


def tables(results: Path) -> dict[Path, dict[str, Any]]:
    """Return the table of each measured device by its path."""
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    by_device: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in sorted(stored, key=lambda result: str(result["date"])):
        by_device[result["device"]].append(result)
    return {tuning.SHIPPED / f"{tuning.slug(device)}.json": _table(found) for device, found in by_device.items()}


def _table(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    newest_times: dict[tuple[str, str], Milliseconds] = defaultdict(dict)
    for result in results:
        for key, times in _times(result["rows"]).items():
            newest_times[key] |= {mode: pair for mode, pair in times.items() if len(pair) == 2}
    winners: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for (op, bucket), times in newest_times.items():
        if found := _winners(times):
            winners[op][bucket] = found
    newest = {name: results[-1][name] for name in PROVENANCE}
    ordered = {op: dict(sorted(winners[op].items())) for op in sorted(winners)}
    return {"schema": tuning.SCHEMA, "source": newest, "configs": {}, "winners": ordered}


def _times(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Milliseconds]:
    """Return device times of ours and PyTorch by operator and bucket; cases of one bucket are summed."""
    found: dict[tuple[str, str], Milliseconds] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for row in rows:
        if row["provider"] in (OURS, "torch") and row["device_ms"] and not row["error"] and row["op"] in SPECS:
            found[row["op"], _bucket(row)][row["mode"]][row["provider"]] += row["device_ms"]
    return found


def _bucket(row: Mapping[str, Any]) -> str:
    spec = SPECS[row["op"]]
    inputs = spec.inputs(Case(row["case"], **row["sizes"]), getattr(torch, row["dtype"]), "meta")
    assert isinstance(spec.op, Operator)
    return spec.op.bucket_for(**inputs)


def _winners(times: Milliseconds) -> dict[str, str]:
    both = {mode: (one[OURS], one["torch"]) for mode, one in times.items()}
    winners = {}
    if "fwd" in both:
        winners["forward"] = _winner(*both["fwd"])
    if "both" in both:
        winners["training"] = _winner(*both["both"])
    elif "fwd" in both and "bwd" in both:
        winners["training"] = _winner(*(sum(pair) for pair in zip(both["fwd"], both["bwd"], strict=True)))
    return winners


def _winner(ours: float, torchs: float) -> str:
    return "torch" if torchs < ours * tuning.NOTICEABLE else "tilesmith"


if __name__ == "__main__":
    sys.exit(main())
