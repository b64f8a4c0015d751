"""AMD's profilers: rocprofv3 records a timeline of kernels, rocprof-compute hardware counters and a roofline."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tilesmith.lab.profile.commands import runnable
from tilesmith.lab.profile.summary import Entry, ProfileError, Summary, busy_percent

Row = dict[str, str]


def trace_command(program: Sequence[str], folder: Path) -> list[str]:
    return [
        "rocprofv3",
        "--kernel-trace", "--hip-runtime-trace", "--stats",
        "--output-format", "csv", "pftrace",
        "--output-directory", str(folder), "--output-file", "profile",
        "--", *runnable(program),
    ]  # fmt: skip


def read_trace(folder: Path) -> Summary:
    kernels = _rows(folder, "*kernel_trace.csv")
    if not kernels:
        raise ProfileError("rocprofv3 recorded no kernel")
    launches = [row for row in _rows(folder, "*hip_api_trace.csv") if "LaunchKernel" in row["Function"]]
    spent = [end - start for start, end in _intervals(launches)]
    return Summary(
        "kernels",
        _from_stats(_rows(folder, "*kernel_stats.csv")) or _from_trace(kernels),
        launches=len(kernels),
        launch_us=sum(spent) / len(spent) / 1e3 if spent else None,
        busy_percent=busy_percent(_intervals(kernels)),
        notes=["rocprofv3 does not measure bandwidth: use --tool rocprof-compute."],
        files=[
            *((str(path), "open it in a browser at ui.perfetto.dev") for path in sorted(folder.rglob("*.pftrace"))),
            *((str(path), "one line per launch") for path in sorted(folder.rglob("*kernel_trace.csv"))),
        ],
    )


def counters_command(program: Sequence[str], folder: Path) -> list[str]:
    """Return the command. Newer versions renamed `--path` to `--output-directory`; their help tells."""
    help_text = subprocess.run(["rocprof-compute", "profile", "--help"], capture_output=True, text=True)
    where = "--output-directory" if "--output-directory" in help_text.stdout else "--path"
    return ["rocprof-compute", "profile", "--name", "profile", where, str(folder), "--", *runnable(program)]


def read_counters(folder: Path) -> Summary:
    """Return the summary. Some versions write no table of launches; the analysis still has all figures."""
    marks = ("profiling_config.yaml", "sysinfo.csv", "pmc_perf.csv")
    workload = next((path.parent for mark in marks for path in sorted(folder.rglob(mark))), None)
    if workload is None:
        raise ProfileError("rocprof-compute recorded nothing")
    kernels = _rows(folder, "pmc_perf.csv")
    return Summary(
        "kernels",
        _from_trace(kernels),
        launches=len(kernels) or None,
        notes=["Bandwidth, utilisation and the roofline are in the analysis: run the command below."],
        files=[(str(workload), f"run: rocprof-compute analyze --path {workload}")],
    )


def _rows(folder: Path, pattern: str) -> list[Row]:
    """Return the rows of all traced processes."""
    found: list[Row] = []
    for path in sorted(folder.rglob(pattern)):
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            found += csv.DictReader(file)
    return found


def _intervals(rows: Iterable[Row]) -> list[tuple[float, float]]:
    return [(float(row["Start_Timestamp"]), float(row["End_Timestamp"])) for row in rows]


def _from_stats(rows: Iterable[Row]) -> list[Entry]:
    totals: dict[str, tuple[int, float]] = {}
    for row in rows:
        calls, spent = totals.get(row["Name"], (0, 0.0))
        totals[row["Name"]] = calls + int(row["Calls"]), spent + float(row["TotalDurationNs"])
    return [Entry(name, calls, spent / 1e3) for name, (calls, spent) in totals.items()]


def _from_trace(rows: Sequence[Row]) -> list[Entry]:
    by_name: dict[str, list[float]] = {}
    for row, (start, end) in zip(rows, _intervals(rows), strict=True):
        by_name.setdefault(row["Kernel_Name"], []).append(end - start)
    return [Entry(name, len(times), sum(times) / 1e3) for name, times in by_name.items()]
