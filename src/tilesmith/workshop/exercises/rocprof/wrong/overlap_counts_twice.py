# fails: right (compare with the latest end so far)
import csv
from collections import defaultdict
from math import ceil
from typing import NamedTuple

WAVEFRONT = 64


class Kernel(NamedTuple):
    """One line of the table: all dispatches of one kernel."""

    name: str
    calls: int
    microseconds: float
    share: float  # of the time of all kernels
    wavefronts: int  # of one dispatch


class Summary(NamedTuple):
    kernels: list[Kernel]  # the slowest first
    idle: float  # the share of the time from the first start to the last end in which no kernel runs


def summarise(trace):
    """Read a kernel trace of rocprofv3 (a CSV file), and say where the time goes."""
    with open(trace, newline="") as file:
        rows = list(csv.DictReader(file))
    times = defaultdict(list)
    waves = {}
    for row in rows:
        name = row["Kernel_Name"]
        times[name].append((int(row["End_Timestamp"]) - int(row["Start_Timestamp"])) / 1000)
        waves[name] = wavefronts(row)
    total = sum(map(sum, times.values()))
    kernels = [Kernel(name, len(found), sum(found), sum(found) / total, waves[name]) for name, found in times.items()]
    return Summary(sorted(kernels, key=lambda one: -one.microseconds), idle_share(rows))


def wavefronts(row):
    """Return the wavefronts of one dispatch: those of a workgroup times the number of workgroups."""
    threads, groups = 1, 1
    for axis in "XYZ":
        side = int(row[f"Workgroup_Size_{axis}"])
        threads *= side
        groups *= ceil(int(row[f"Grid_Size_{axis}"]) / side)
    return ceil(threads / WAVEFRONT) * groups


def idle_share(rows):
    """Return the share of the time in which no kernel runs: launches that come too late."""
    spans = sorted((int(row["Start_Timestamp"]), int(row["End_Timestamp"])) for row in rows)
    first, latest, gaps = spans[0][0], spans[0][1], 0
    for start, end in spans[1:]:
        gaps += max(0, start - latest)
        latest = end
    return gaps / (latest - first)


if __name__ == "__main__":
    import sys

    found = summarise(sys.argv[1])
    for kernel in found.kernels:
        print(f"{kernel.share:6.1%} {kernel.microseconds:10.1f} µs {kernel.calls:5d} calls  {kernel.name}")
    print(f"idle {found.idle:.1%}")
