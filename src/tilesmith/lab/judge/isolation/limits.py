"""Limits of a child process."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

GIGABYTE = 1 << 30
LARGEST_FILE = 64 << 20
MOST_FILES_OPEN = 256


@dataclass(frozen=True)
class Limits:
    """What one call of a candidate may use. `seconds` is wall time of one request; the child's CPU time is ten times
    that over its whole life."""

    seconds: float = 30.0
    gigabytes: float = 4.0


def apply(limits: Limits, *, on_gpu: bool = False) -> bool:
    """Limit this process. Return whether all limits hold.

    A process on a GPU has no limit of memory: the driver reserves address space for the GPU's memory.
    """
    memory = _virtual_bytes() + int(limits.gigabytes * GIGABYTE)
    wanted = {
        "memory": (resource.RLIMIT_AS, memory),
        "CPU time": (resource.RLIMIT_CPU, max(1, int(10 * limits.seconds))),
        "file size": (resource.RLIMIT_FSIZE, LARGEST_FILE),
        "open files": (resource.RLIMIT_NOFILE, MOST_FILES_OPEN),
        "core dumps": (resource.RLIMIT_CORE, 0),
    }
    held = 0
    if on_gpu:
        del wanted["memory"]
    for kind, value in wanted.values():
        try:
            _, hardest = resource.getrlimit(kind)
            value = value if hardest == resource.RLIM_INFINITY else min(value, hardest)
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):
            continue
        held += 1
    return held == len(wanted)


def _virtual_bytes() -> int:
    """Return the address space that this process already uses: a limit counts it too."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 16 * GIGABYTE
