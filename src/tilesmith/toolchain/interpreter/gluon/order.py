"""Which operations of one program are ordered: partitions, asynchronous operations, and vector clocks.

A partition of `warp_specialize` and every asynchronous operation (a TMA copy, an asynchronous wgmma) is an actor. A
clock says, for each actor, up to which time its accesses are known to be over. Waiting for an mbarrier, a copy group or
an asynchronous wgmma joins clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

Clock = dict[int, int]

_numbers = count()


def joined(clock: Clock, other: Clock) -> None:
    """Add the knowledge of `other` to `clock`."""
    for actor, time in other.items():
        if clock.get(actor, 0) < time:
            clock[actor] = time


@dataclass
class Actor:
    """A partition or an asynchronous operation: its number, its time, and what it knows of others."""

    name: str
    clock: Clock = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))
    place: tuple[str, int] = ("", 0)  # the file and line that start an asynchronous operation

    def __post_init__(self) -> None:
        self.clock[self.number] = 1

    @property
    def time(self) -> int:
        return self.clock[self.number]

    def release(self) -> Clock:
        """Return what this actor knows now, including itself; its later accesses are not part of it."""
        known = dict(self.clock)
        self.clock[self.number] += 1
        return known

    def knows(self, actor: int, time: int) -> bool:
        """Whether an access of `actor` at `time` is over before the next access of this actor."""
        return self.clock.get(actor, 0) >= time

    def started(self, name: str) -> Actor:
        """Return an asynchronous operation that this actor starts."""
        return Actor(name, self.release())


@dataclass
class Partition(Actor):
    """The warps that run one function: also the asynchronous operations that it has not waited for."""

    warps: int = 4
    products: list[Actor] = field(default_factory=list)  # wgmma or tcgen05
    stores: list[Actor] = field(default_factory=list)  # TMA stores
    copies: list[Actor] = field(default_factory=list)  # cp.async outside a committed group
    groups: list[list[Actor]] = field(default_factory=list)

    def finish(self, running: list[Actor], left: int) -> list[Actor]:
        """Wait until at most `left` of these operations run; return those that still do."""
        done = running[: max(0, len(running) - left)]
        for actor in done:
            joined(self.clock, actor.clock)
        return running[len(done) :]
