"""What a process uses, as Linux reports it: memory, and the time that counts against a limit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process; 0 where the system does not report it."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class OwnTime:
    """The seconds that processes computed or slept. Time in which they wait for a processor of a busy machine is not
    their own."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._computed = 0.0
        self._slept = 0.0

    def spent(self, processes: Iterable[int]) -> float:
        """Look at the processes, and return the seconds that they have spent so far."""
        now = time.monotonic()
        found = [_state_and_seconds(one) for one in processes]
        computed = max(sum(seconds for _, seconds in found), self._computed)
        if computed == self._computed and all(state == "S" for state, _ in found):
            self._slept += now - self._looked
        self._looked, self._computed = now, computed
        return computed + self._slept


def _state_and_seconds(process: int) -> tuple[str, float]:
    """Return a process's state and the CPU time of it and of its ended children; a sleeping one where it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return fields[0], sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return "S", 0.0
