"""PyTorch's profiler: a timeline of host and GPU in Chrome's trace format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilesmith.lab.profile.commands import python_program
from tilesmith.lab.profile.summary import Entry, ProfileError, Summary, busy_percent

Event = dict[str, Any]

_RUNNER = Path(__file__).with_name("runner.py")
_OPENING = "open it in a browser at ui.perfetto.dev (nothing is uploaded) or at chrome://tracing"
_OCCUPANCY = "est. achieved occupancy %"
_NO_BANDWIDTH = (
    "PyTorch's profiler does not measure bandwidth: use --tool ncu on NVIDIA, or `tilesmith bench` on any GPU."
)


def command(program: Sequence[str], folder: Path) -> list[str]:
    interpreter, target = python_program(program)
    return [*interpreter, str(_RUNNER), "torch", str(folder), *target]


def read(folder: Path) -> Summary:
    path = folder / "trace.json.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            events = json.load(file)["traceEvents"]
    except FileNotFoundError:
        raise ProfileError("the profiler wrote no trace") from None
    return summarised(events, [(str(path), _OPENING)])


def summarised(events: Iterable[Event], files: Sequence[tuple[str, str]]) -> Summary:
    """Return the summary of the GPU kernels; without any, of the CPU operators by self time."""
    complete = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in complete if event.get("cat") == "kernel"]
    if not kernels:
        operators = [event for event in complete if event.get("cat") == "cpu_op"]
        notes = ["No kernel ran on a GPU: the table shows the self time of PyTorch's CPU operators."]
        return Summary("operators", _operators(operators), notes=notes, files=files)
    launches = [event for event in complete if _is_launch(event)]
    return Summary(
        "kernels",
        _kernels(kernels),
        launches=len(launches) or None,
        launch_us=sum(event["dur"] for event in launches) / len(launches) if launches else None,
        busy_percent=busy_percent((event["ts"], event["ts"] + event["dur"]) for event in kernels),
        notes=[_NO_BANDWIDTH],
        files=files,
    )


def _is_launch(event: Event) -> bool:
    return event.get("cat") in ("cuda_runtime", "cuda_driver") and "LaunchKernel" in event["name"]


def _kernels(kernels: Iterable[Event]) -> list[Entry]:
    by_name: dict[str, list[Event]] = {}
    for event in kernels:
        by_name.setdefault(event["name"], []).append(event)
    return [
        Entry(name, len(calls), sum(event["dur"] for event in calls), occupancy_percent=_occupancy(calls))
        for name, calls in by_name.items()
    ]


def _occupancy(calls: Sequence[Event]) -> float | None:
    """Return the profiler's estimate, weighted by time."""
    known = [(event["args"][_OCCUPANCY], event["dur"]) for event in calls if _OCCUPANCY in event.get("args", {})]
    total = sum(duration for _, duration in known)
    return sum(share * duration for share, duration in known) / total if total else None


def _operators(events: Iterable[Event]) -> list[Entry]:
    own: dict[str, list[float]] = {}
    for name, duration in _self_times(events):
        own.setdefault(name, []).append(duration)
    return [Entry(name, len(times), sum(times)) for name, times in own.items()]


def _self_times(events: Iterable[Event]) -> list[tuple[str, float]]:
    """Return each event's duration minus that of its direct children on the same thread."""
    ordered = sorted(events, key=lambda event: (str(event["pid"]), str(event["tid"]), event["ts"], -event["dur"]))
    times = [event["dur"] for event in ordered]
    around: list[int] = []
    for place, event in enumerate(ordered):
        while around and not _inside(event, ordered[around[-1]]):
            around.pop()
        if around:
            times[around[-1]] -= event["dur"]
        around.append(place)
    return [(event["name"], max(0.0, time)) for event, time in zip(ordered, times, strict=True)]


def _inside(event: Event, other: Event) -> bool:
    same_thread = (event["pid"], event["tid"]) == (other["pid"], other["tid"])
    return same_thread and bool(event["ts"] < other["ts"] + other["dur"])
