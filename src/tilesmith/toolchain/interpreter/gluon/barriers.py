"""mbarriers: phases that end when the expected arrivals and bytes have come."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.toolchain.interpreter.gluon.order import Clock, joined
from tilesmith.toolchain.interpreter.gluon.shared_memory import Buffer, WrongUse


@dataclass
class Barrier:
    """The state of one mbarrier. A phase ends when no arrival and no byte is missing."""

    count: int
    missing: int
    bytes: int = 0
    phase: int = 0
    gathered: Clock = field(default_factory=dict)  # what the arrivals of this phase know
    visible: Clock = field(default_factory=dict)  # what those of the phases that ended knew

    def is_over(self, parity: int) -> bool:
        """Whether the last phase of this parity has ended; of odd parity, one ended before the first."""
        return self.phase & 1 != parity & 1

    def arrive(self, count: int, clock: Clock) -> None:
        if count > self.missing:
            raise WrongUse(f"{count} arrivals at an mbarrier that expects {self.missing} more in this phase")
        self.missing -= count
        joined(self.gathered, clock)
        self._end_phase()

    def expect(self, size: int) -> None:
        self.bytes += size

    def complete(self, size: int, clock: Clock) -> None:
        """Count bytes that an asynchronous copy has written."""
        self.bytes -= size
        joined(self.gathered, clock)
        self._end_phase()

    def _end_phase(self) -> None:
        if self.missing == 0 and self.bytes == 0:
            self.phase += 1
            self.missing = self.count
            joined(self.visible, self.gathered)

    def lacks(self) -> str:
        """Return what the present phase waits for, in words."""
        arrivals = f"{self.missing} of {self.count} arrivals" if self.missing else ""
        return " and ".join(filter(None, [arrivals, f"{self.bytes} bytes" if self.bytes else ""])) or "nothing"


def make_barrier(buffer: Buffer, count: int) -> None:
    """Initialise the mbarrier in this memory."""
    if count < 1:
        raise WrongUse(f"an mbarrier is initialised with a count of {count}; it must be positive")
    buffer.allocation.barriers[buffer.address] = Barrier(count, count)


def barrier_in(buffer: Buffer) -> Barrier:
    """Return the mbarrier in this memory."""
    found = buffer.allocation.barriers.get(buffer.address)
    if found is None:
        raise WrongUse("an mbarrier is used that was not initialised")
    assert isinstance(found, Barrier)
    return found
