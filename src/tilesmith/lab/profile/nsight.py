"""Nsight Compute: hardware counters of each kernel. Nsight replays each launch several times."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tilesmith.lab.profile.commands import runnable
from tilesmith.lab.profile.summary import Entry, ProfileError, Summary

LAUNCHES = 200
"""Launches to record. Each one is replayed several times, so a whole training run would take hours."""

_TIME = "gpu__time_duration.sum"
_BYTES = "dram__bytes.sum"
_MEMORY = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
_COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_UNITS = {
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 1.0, "": 1.0,
}  # fmt: skip

Row = dict[str, str]


def command(program: Sequence[str], folder: Path) -> list[str]:
    return [
        "ncu",
        "--clock-control", "none",  # ncu's default, the base clock, changes the times
        "--target-processes", "all",
        "--launch-count", str(LAUNCHES),
        "--section", "SpeedOfLight",
        "--metrics", ",".join((_TIME, _BYTES, _MEMORY, _COMPUTE, _OCCUPANCY)),
        "--force-overwrite", "--export", str(folder / "profile"),
        *runnable(program),
    ]  # fmt: skip


def read(folder: Path) -> Summary:
    report = folder / "profile.ncu-rep"
    if not report.exists():
        raise ProfileError(
            "ncu recorded no kernel; ERR_NVGPUCTRPERM means that the driver allows counters to root only"
        )
    listing = ["ncu", "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    answer = subprocess.run(listing, capture_output=True, text=True)
    if answer.returncode:
        raise ProfileError(f"ncu cannot read its own report {report}: {answer.stdout.strip()[-200:]}")
    return summarised(answer.stdout.splitlines(), [(str(report), f"run: ncu-ui {report}")])


def summarised(lines: Iterable[str], files: Sequence[tuple[str, str]]) -> Summary:
    """Return the summary of ncu's raw page as CSV: names, units, then one line per launch."""
    rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    if not rows:
        raise ProfileError("ncu recorded no kernel")
    units, launches = rows[0], rows[1:]
    by_name: dict[str, list[Row]] = {}
    for row in launches:
        by_name.setdefault(row["Kernel Name"], []).append(row)
    notes = ["Nsight runs kernels one at a time and replays them: kernel times are valid, gaps between them are not."]
    if len(launches) >= LAUNCHES:
        notes.append(f"Only the first {LAUNCHES} launches were measured.")
    entries = [_entry(name, calls, units) for name, calls in by_name.items()]
    return Summary("kernels", entries, launches=len(launches), notes=notes, files=files)


def _entry(name: str, calls: Sequence[Row], units: Row) -> Entry:
    times = [_number(row, units, _TIME) or 0.0 for row in calls]
    total = sum(times)
    moved = [_number(row, units, _BYTES) for row in calls]

    def weighted(metric: str) -> float | None:
        shares = [_number(row, units, metric) for row in calls]
        known = [(share, time) for share, time in zip(shares, times, strict=True) if share is not None]
        over = sum(time for _, time in known)
        return sum(share * time for share, time in known) / over if over else None

    return Entry(
        name, len(calls), total / 1e3,
        tb_per_s=sum(one for one in moved if one) / total / 1e3 if total and any(moved) else None,
        memory_percent=weighted(_MEMORY), compute_percent=weighted(_COMPUTE), occupancy_percent=weighted(_OCCUPANCY),
    )  # fmt: skip


def _number(row: Row, units: Row, metric: str) -> float | None:
    """Return a metric; None where this GPU does not have the counter."""
    try:
        return float(row[metric].replace(",", "")) * _UNITS[units[metric]]
    except (KeyError, ValueError):
        return None
