"""Proton, Triton's profiler: a call tree with times, and with bytes where kernels report them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tilesmith.lab.profile.commands import python_program
from tilesmith.lab.profile.summary import Entry, ProfileError, Summary

_RUNNER = Path(__file__).with_name("runner.py")


def command(program: Sequence[str], folder: Path) -> list[str]:
    interpreter, target = python_program(program)
    return [*interpreter, str(_RUNNER), "proton", str(folder), *target]


def read(folder: Path) -> Summary:
    path = folder / "proton.hatchet"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProfileError("proton wrote no profile") from None
    opening = f"run: proton-viewer -m time/ms,count {path} (needs: pip install llnl-hatchet)"
    return summarised(tree, [(str(path), opening)])


def summarised(tree: Sequence[dict[str, Any]], files: Sequence[tuple[str, str]]) -> Summary:
    """Return the summary of the call tree, which is the first element of the recording."""
    totals: dict[str, dict[str, float]] = {}
    for name, metrics in _kernels(tree[0]) if tree else ():
        total = totals.setdefault(name, {"time": 0.0, "count": 0.0, "bytes": 0.0})
        total["time"] += metrics["time (ns)"]
        total["count"] += metrics.get("count", 1)
        total["bytes"] += metrics.get("bytes", 0)
    entries = [
        Entry(
            name,
            max(1, int(total["count"])),
            total["time"] / 1e3,
            tb_per_s=total["bytes"] / total["time"] / 1e3 if total["bytes"] and total["time"] else None,
        )
        for name, total in totals.items()
    ]
    notes = [] if any(entry.tb_per_s for entry in entries) else [
        "No bandwidth: no kernel reports the bytes it moves. See `launch_metadata` of triton.jit."
    ]  # fmt: skip
    launches = sum(entry.calls for entry in entries)
    return Summary("kernels", entries, launches=launches or None, notes=notes, files=files)


def _kernels(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    if node.get("metrics", {}).get("time (ns)"):
        yield node["frame"]["name"], node["metrics"]
    for child in node.get("children", ()):
        yield from _kernels(child)
