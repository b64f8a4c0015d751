"""Detect races, out-of-bounds accesses, uninitialised loads and address overflows of one launch.

A GPU runs programs at once, in any order. So two programs must not write the same element, and no program may read what
another writes, unless one program releases a scalar with an atomic after its access, and the other acquires that scalar
with an atomic before its own. An atomic with `sem="relaxed"` or `scope="cta"` does neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.lab.inspect.model import Program
from tilesmith.lab.inspect.tracing.program_order import ProgramOrder
from tilesmith.lab.inspect.tracing.shadow_memory import Lanes, Places, Programs, ShadowMemory, StorageShadow, Where
from tilesmith.toolchain.interpreter import Access, Doubt, Hint, Misuse, OutOfBounds, Undefined
from tilesmith.toolchain.interpreter.observing.operations import MOST_REPEATED
from tilesmith.toolchain.interpreter.values.hints import broken_width

HIDDEN_BY = {"undefined": "harmful", "out-of-bounds": "overflow"}  # at the same place
UNWRITTEN, OUTSIDE_VIEW, OUTSIDE_TILE = "unwritten", "outside the view", "outside the tile"


@dataclass
class Incident:
    """One kind of fault at one source line: the first example, and the number of affected elements."""

    kind: str  # "out-of-bounds", "write-write", "same-value", "read-write", "harmful", the cause of a doubt, …
    file: str
    line: int
    access: str
    argument: str | None
    program: Program
    elements: int = 0
    element: int | None = None
    other: Program | None = None
    message: str = ""


class Sanitizer:
    """Collects the incidents of one launch."""

    def __init__(self, grid: Program, shadows: ShadowMemory) -> None:
        self._grid = grid
        self._shadows = shadows
        self._incidents: dict[tuple[Any, ...], Incident] = {}
        self._counted: dict[int, NDArray[np.bool_]] = {}  # by identity of the incident: the places that it counts
        self._time = 0  # accesses so far
        self._acquired: defaultdict[int, set[int]] = defaultdict(set)  # by program: addresses of scalars
        self._released: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by program and address: the last time
        self._accesses: dict[tuple[int, int], int] = {}  # by program and storage: time of the last one
        self._doubtful: dict[tuple[str, str, int, str | None], Incident] = {}  # loads, by cause and place
        self._causes: list[str] = []  # why lanes of the load that is being checked must not decide a result
        self._refused: list[OutOfBounds] = []  # of programs that are not followed
        self.order = ProgramOrder()
        self.hints: dict[tuple[str, int, str], Hint] = {}  # false ones, by place and name
        self.broken: dict[tuple[str, int], dict[tuple[str, int], int]] = {}  # by hint and access: the narrowest fault
        self.tiles: dict[tuple[str, int, str], list[int]] = {}  # by place: all tiles of a descriptor, those outside

    def incidents(self) -> Iterator[Incident]:
        """Yield the findings. Undefined lanes that change a result in some program hide those that change none, and an
        overflow hides the access out of bounds that follows from it.
        """
        for error in self._refused:
            if error.access.overflow is not None:  # known since the end of its program
                self._overflow(error.access, error.access.argument)
        for (kind, *where), incident in self._incidents.items():
            if (HIDDEN_BY.get(kind), *where) not in self._incidents and not self._is_said_of_load(incident):
                yield incident

    def _is_said_of_load(self, store: Incident) -> bool:
        """Return whether a load of the same line has the race of a store with what other programs read."""
        load = (store.kind, store.file, store.line, "load", store.argument)
        return store.kind == "read-write" and store.access == "store" and load in self._incidents

    def out_of_bounds(self, error: OutOfBounds) -> None:
        incident = self._incident("out-of-bounds", error.access, error.access.argument)
        incident.elements += int(np.count_nonzero(error.bad_lanes))
        incident.message = incident.message or str(error)
        if error.access.overflow is not None:
            self._overflow(error.access, error.access.argument)
        elif len(self._refused) < MOST_REPEATED:
            self._refused.append(error)

    def _overflow(self, access: Access, argument: str | None) -> None:
        self._incident("overflow", access, argument).message = "{}:{}".format(*access.overflow or ())

    def misuse(self, misuse: Misuse) -> None:
        """Note accesses to shared memory that no wait orders, or that read what nobody wrote."""
        kind = "shared race" if "does not wait" in str(misuse) else "shared unwritten"
        key = (kind, misuse.file, misuse.line)
        self._incidents.setdefault(
            key, Incident(kind, misuse.file, misuse.line, "shared", None, misuse.program, message=str(misuse))
        )

    def access(
        self, access: Access, argument: str | None, shadow: StorageShadow, places: Where, number: int
    ) -> tuple[int, int]:
        """Check an access of program `number`. Return how many places are new, and how many it touched before."""
        self._time += 1
        if access.kind != "atomic":
            self._accesses[number, shadow.start] = self._time
        if access.overflow is not None:
            self._overflow(access, argument)
        self._outside_view(access, argument, shadow)
        self._thread_order(access, argument, shadow)
        if access.hint is not None:
            self._rely(access, access.hint)
        if access.kind == "load":
            self._uninitialised(access, argument, shadow, places)
            new, again, written_by = shadow.load(places, number)
            self._conflicts("read-write", access, argument, shadow, places, written_by, number)
            return new, again
        before = int(np.count_nonzero(shadow.writer[places] == number))
        if access.kind == "atomic":
            if access.operation.rpartition(" ")[2] not in ("xchg", "store"):
                self._uninitialised(access, argument, shadow, places)
            if access.addresses.size == 1 and not access.operation.startswith("relaxed"):
                address = int(access.addresses.flat[0])
                self._acquired[number].add(address)
                if not _leaves_unchanged(access, shadow):
                    self._released[number][address] = self._time
            new, written_by = shadow.update(places, number)
            self._conflicts("write-write", access, argument, shadow, places, written_by, number)
        else:
            if not isinstance(places, slice):
                self._conflicting_lanes(access, argument, places)
            new, written_by, read_by = shadow.store(places, number)
            shared = shadow.numbered(places)[written_by != 0] if written_by is not None else None
            same = shared is not None and _stores_what_is_there(access, shadow, shared)
            self._conflicts(
                "same-value" if same else "write-write", access, argument, shadow, places, written_by, number
            )
            self._conflicts("read-write", access, argument, shadow, places, read_by, number)
        shadow.now_written(places)
        return new, before

    def false_hint(self, hint: Hint) -> None:
        self.hints.setdefault((hint.file, hint.line, hint.name), hint)

    def _rely(self, access: Access, hint: tuple[str, int]) -> None:
        """Note how wide an access whose address follows from a false hint can be."""
        width = broken_width(access.addresses, access.mask, access.element_bytes)
        if width is not None:
            accesses = self.broken.setdefault(hint, {})
            place = (access.file, access.line)
            accesses[place] = min(width * access.element_bytes, accesses.get(place, 16))

    def _thread_order(self, access: Access, argument: str | None, shadow: StorageShadow) -> None:
        """Note elements that another thread of the same program accessed since the last barrier."""
        unordered = self.order.access(access, shadow.start)
        if unordered is None:
            return
        incident = self._incident("maybe threads" if unordered.maybe_ordered else "threads", access, argument)
        incident.elements += unordered.elements
        if incident.element is None:
            place = (unordered.first_address - shadow.start) // shadow.granule
            incident.element = self._element(argument, shadow, place)
            incident.message = f"{unordered.earlier.kind}:{unordered.earlier.line}"

    def tile(self, access: Access, argument: str | None) -> None:
        """Note an access through a descriptor, which may lie wholly outside it."""
        counts = self.tiles.setdefault((access.file, access.line, access.kind), [0, 0])
        counts[0] += 1
        if access.mask.any():
            return
        counts[1] += 1
        if access.kind == "load":
            self._note_doubt(OUTSIDE_TILE, access, argument).elements += 1
        else:
            self._incident(OUTSIDE_TILE, access, argument).elements += 1

    def doubt(self, access: Access) -> Doubt | None:
        """Return the lanes of the last load that must not decide a result, and why; None where there are none."""
        causes, self._causes = self._causes, []
        if not causes:
            return None
        if OUTSIDE_TILE in causes:
            return Doubt(OUTSIDE_TILE, np.ones_like(access.mask))
        if OUTSIDE_VIEW in causes:
            outside = self._shadows.outside_view(access.argument, access.addresses)
            assert outside is not None
            return Doubt(OUTSIDE_VIEW, outside & access.mask)
        return Doubt(UNWRITTEN, self._unwritten_lanes(access))

    def _unwritten_lanes(self, access: Access) -> Lanes:
        first = int(access.addresses[access.mask].flat[0])
        shadow = self._shadows.of(access.argument, first)
        assert shadow is not None, "a load of unknown memory has no unwritten places"
        inside = (access.addresses >= shadow.start) & (access.addresses < shadow.end)
        places = (np.where(inside, access.addresses, shadow.start).astype(np.int64) - shadow.start) // shadow.granule
        unwritten = shadow.unwritten(places)
        assert unwritten is not None
        return unwritten & inside & access.mask

    def undefined(self, undefined: Undefined, lanes: Lanes, program: Program) -> None:
        """Note that undefined values decide a result."""
        origin = undefined.origin
        kind = origin.cause if origin.cause != "masked" else "harmful" if undefined.harmful else "undefined"
        key = (kind, origin.file, origin.line, "load", origin.argument)
        known = self._doubtful.get((origin.cause, origin.file, origin.line, origin.argument))
        if key not in self._incidents:
            fresh = Incident(kind, origin.file, origin.line, "load", origin.argument, program)
            self._incidents[key] = fresh if known is None else known
        if known is None:
            self._incidents[key].elements += int(np.count_nonzero(lanes))

    def _uninitialised(self, access: Access, argument: str | None, shadow: StorageShadow, places: Where) -> None:
        """Note an access to memory that nobody has written. An atomic is a fault; a load only if its value is used."""
        unwritten = shadow.unwritten(places)
        if unwritten is None or not unwritten.any():
            return
        if access.kind == "load":
            incident = self._note_doubt(UNWRITTEN, access, argument)
        else:
            incident = self._incident(UNWRITTEN, access, argument)
        incident.elements += int(np.count_nonzero(unwritten))
        if incident.element is None:
            incident.element = self._element(argument, shadow, int(shadow.numbered(places)[unwritten][0]))

    def _outside_view(self, access: Access, argument: str | None, shadow: StorageShadow) -> None:
        """Note elements of the storage that the tensor does not have. A load is a fault only if its value is used."""
        outside = self._shadows.outside_view(argument, access.addresses)
        if outside is None:
            return
        outside &= access.mask & (access.addresses >= shadow.start) & (access.addresses < shadow.end)
        if not outside.any():
            return
        note = self._note_doubt if access.kind == "load" else self._incident
        incident = note(OUTSIDE_VIEW, access, argument)
        incident.elements += int(np.count_nonzero(outside))
        if incident.element is None:
            place = (int(access.addresses[outside].flat[0]) - shadow.start) // shadow.granule
            incident.element = self._element(argument, shadow, place)

    def _note_doubt(self, cause: str, access: Access, argument: str | None) -> Incident:
        self._causes.append(cause)
        key = (cause, access.file, access.line, access.argument)
        return self._doubtful.setdefault(
            key, Incident(cause, access.file, access.line, "load", argument, access.program)
        )

    def _conflicts(
        self,
        kind: str,
        access: Access,
        argument: str | None,
        shadow: StorageShadow,
        where: Where,
        programs: Programs | None,
        number: int,
    ) -> None:
        if programs is None:
            return
        places = shadow.numbered(where)
        for other in np.unique(programs[programs != 0]).tolist():
            if self._released and self._is_ordered(other, number, shadow):
                continue
            theirs = places[programs == other]
            incident = self._incident(kind, access, argument)
            counted = self._counted.setdefault(id(incident), np.zeros(shadow.writer.size, dtype=bool))
            incident.elements += int(np.count_nonzero(~counted[theirs]))  # each element once, whoever races on it
            counted[theirs] = True
            if incident.other is None:
                incident.other = self._program(other)
                incident.element = self._element(argument, shadow, int(theirs[0]))

    def _is_ordered(self, earlier: int, later: int, shadow: StorageShadow) -> bool:
        """Return whether one program released a scalar after its last access here, and the other acquired it before.

        A ticket that a program draws before its accesses releases nothing, nor does an atomic that changes nothing: who
        acquires the value may have it from before.
        """
        last = self._accesses.get((earlier, shadow.start), 0)
        acquired = self._acquired[later]
        return any(time > last and address in acquired for address, time in self._released[earlier].items())

    def _conflicting_lanes(self, access: Access, argument: str | None, places: Places) -> None:
        """Report lanes of one store that write different values to one element."""
        if places.size >= np.count_nonzero(access.mask) or access.value is None:
            return
        addresses = access.addresses[access.mask]
        values = np.broadcast_to(access.value, access.mask.shape)[access.mask]
        order = np.argsort(addresses, kind="stable")
        addresses, values = addresses[order], values[order]
        clash = (addresses[1:] == addresses[:-1]) & (values[1:] != values[:-1])
        clash &= (values[1:] == values[1:]) | (values[:-1] == values[:-1])  # two NaNs count as equal
        if clash.any():
            self._incident("lanes", access, argument).elements += int(np.count_nonzero(clash))

    def _incident(self, kind: str, access: Access, argument: str | None) -> Incident:
        key = (kind, access.file, access.line, access.kind, argument)
        if key not in self._incidents:
            self._incidents[key] = Incident(kind, access.file, access.line, access.kind, argument, access.program)
        return self._incidents[key]

    def _element(self, argument: str | None, shadow: StorageShadow, place: int) -> int:
        """Return the offset of a place from its argument's first element."""
        tensor = self._shadows.tensors.get(argument or "", shadow.tensor)
        return (shadow.start + place * shadow.granule - tensor.data_ptr()) // tensor.element_size()

    def _program(self, number: int) -> Program:
        rest = number - 1
        return rest % self._grid[0], rest // self._grid[0] % self._grid[1], rest // (self._grid[0] * self._grid[1])


def _leaves_unchanged(access: Access, shadow: StorageShadow) -> bool:
    """Return whether an atomic on a scalar writes the value that is there, or adds 0 to it."""
    operation = access.operation.rpartition(" ")[2]
    if operation in ("xchg", "store", "cas"):
        return _stores_what_is_there(access, shadow, shadow.places(access.addresses, access.element_bytes))
    return operation == "load" or (operation == "add" and access.value is not None and not np.any(access.value))


def _stores_what_is_there(access: Access, shadow: StorageShadow, places: Places) -> bool:
    """Return whether a store leaves these places unchanged."""
    if access.value is None:
        return False
    addresses = access.addresses[access.mask]
    stored: NDArray[Any] = np.broadcast_to(access.value, access.mask.shape)[access.mask].astype(np.float64)
    inside = np.isin((addresses.astype(np.int64) - shadow.start) // shadow.granule, places)
    return bool(np.array_equal(shadow.contents(addresses[inside]), stored[inside], equal_nan=True))
