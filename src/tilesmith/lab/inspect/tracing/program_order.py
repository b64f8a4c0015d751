"""Races between the threads of one program.

Threads of a program run in any order between two barriers. So a thread must not load what another thread stored since
the last barrier, nor store what another thread accessed since then. Equal lanes of blocks of equal shape belong to one
thread.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tilesmith.lab.inspect.model import Program
from tilesmith.toolchain.interpreter import Access

MOST_RECENT = 8  # accesses to one storage that are compared


@dataclass
class _Recent:
    access: Access
    maybe_ordered: bool = False  # by a barrier that the compiler may need for a reduction or a dot


@dataclass(frozen=True)
class Unordered:
    """An earlier access of the same program to elements that another thread accesses now."""

    earlier: Access
    elements: int
    first_address: int
    maybe_ordered: bool


class ProgramOrder:
    """The accesses of the running program since its last barrier, by storage."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._recent: defaultdict[int, list[_Recent]] = defaultdict(list)

    def barrier(self, certain: bool) -> None:
        if certain:
            self._recent.clear()
            return
        for accesses in self._recent.values():
            for recent in accesses:
                recent.maybe_ordered = True

    def access(self, access: Access, storage: int) -> Unordered | None:
        """Note an access. Return an earlier one that it is not ordered with; None where all are."""
        if access.program != self._program:
            self._program = access.program
            self._recent.clear()
        if access.kind == "atomic":
            self.barrier(certain=False)
            return None
        recent = self._recent[storage]
        found = next(filter(None, (_unordered(one, access) for one in reversed(recent))), None)
        recent.append(_Recent(access))
        del recent[:-MOST_RECENT]
        return found


def _unordered(recent: _Recent, access: Access) -> Unordered | None:
    earlier = recent.access
    if earlier.kind == "load" and (access.kind == "load" or recent.maybe_ordered or earlier.addresses.size == 1):
        return None  # of a scalar, the thread that stores it also loads it
    if earlier.kind == "store" and access.kind == "store" and (recent.maybe_ordered or earlier.line == access.line):
        return None
    same_shape = earlier.addresses.shape == access.addresses.shape
    if same_shape and access.addresses.size > 1 and np.array_equal(earlier.addresses, access.addresses):
        return None
    if access.addresses.size == 1 and access.kind == "store" and earlier.addresses.size == 1:
        return None  # one thread stores every scalar
    mine, my_lanes = _active(access)
    theirs, their_lanes = _active(earlier)
    shared, mine_at, theirs_at = np.intersect1d(mine, theirs, return_indices=True)
    if same_shape and access.addresses.size > 1:
        shared = shared[my_lanes[mine_at] != their_lanes[theirs_at]]
    if not shared.size:
        return None
    return Unordered(earlier, int(shared.size), int(shared[0]), recent.maybe_ordered)


def _active(access: Access) -> tuple[np.ndarray, np.ndarray]:
    lanes = np.flatnonzero(access.mask)
    return access.addresses.reshape(-1)[lanes], lanes
