"""Count the memory transactions of a launch, from the interpreter's addresses and the compiler's layouts.

A request is one memory instruction of one warp; memory serves it in sectors of 32 bytes. The number of sectors depends
on the addresses in a request. The compiled layout assigns each address to a warp and register, and the vector width
groups registers into instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tilesmith.toolchain.compiler import Access as CompiledAccess
from tilesmith.toolchain.compiler import Binary
from tilesmith.toolchain.compiler.layouts import Blocked, LaidOutAccess, accesses_of, owners
from tilesmith.toolchain.compiler.linear import Linear
from tilesmith.toolchain.interpreter import Access, Observer, interpret

SECTOR_BYTES = 32
MOST_PROGRAMS = 8

Program = tuple[int, int, int]


@dataclass(frozen=True)
class Transactions:
    """Sectors of all global loads and stores of a launch, extrapolated from some programs.

    `ideal` is the number of sectors if the elements of each request were packed. The first and the last program count
    once, the programs between represent the rest. `unknown` lists the accesses that are not counted.
    """

    sectors: int
    ideal: int
    sampled: int
    programs: int
    unknown: tuple[str, ...]


class Requested(NamedTuple):
    """Requests and sectors of one execution of an access, over all warps."""

    requests: int
    sectors: int
    ideal: int


class Located(Protocol):
    """An access with its source position."""

    @property
    def kind(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class CompiledPlaces:
    """The accesses of a binary, by source position."""

    def __init__(self, binary: Binary) -> None:
        self._laid_out = accesses_of(binary)
        self._compiled = binary.accesses

    def laid_out(self, place: Located, elements: int, columns: Sequence[int] = ()) -> LaidOutAccess | None:
        """Return the compiler's layout of an access; None where the line has no layout, or several.

        `columns` are the columns of all accesses of the same kind on the line: Triton releases count columns
        differently, but keep their order.
        """
        on_line = [one for one in self._laid_out if _same_line(one, place)]
        known = sorted({one.column for one in on_line})
        if len(columns) == len(known) > 1:
            on_line = [one for one in on_line if one.column == known[sorted(columns).index(place.column)]]
        fitting = [one for one in on_line if one.bulk or prod(one.shape) == elements]
        alike = {(one.shape, one.layout, one.warps, one.bulk) for one in fitting}
        return fitting[0] if len(alike) == 1 else None

    def vector_bytes(self, place: Located, column: int | None = None) -> int | None:
        """Return the most common access width per thread at this position; None where there is no access."""
        on_line = [one for one in self._compiled if _same_line(one, place)]
        widths: Counter[int] = Counter()
        for one in [one for one in on_line if one.column == column] or on_line:
            widths[one.vector_bytes] += one.count
        return widths.most_common(1)[0][0] if widths else None


def requested(
    laid_out: LaidOutAccess,
    vector_bytes: int,
    element_bytes: int,
    addresses: NDArray[Any],
    mask: NDArray[np.bool_],
    sector_bytes: int = SECTOR_BYTES,
) -> Requested:
    """Return requests and sectors of one execution with these addresses."""
    active = mask.reshape(-1)
    places = addresses.reshape(-1)[active].astype(np.int64)
    if laid_out.bulk or laid_out.layout is None:
        numbers = np.zeros(places.size, dtype=np.int64)
    else:
        numbers = request_numbers(laid_out.shape, laid_out.layout, max(1, vector_bytes // element_bytes))[active]
    sectors = _distinct_per_request(numbers, places // sector_bytes)
    packed = -(-_distinct_per_request(numbers, places) * element_bytes // sector_bytes)
    requests = int(np.count_nonzero(sectors))
    return Requested(laid_out.warps * requests, laid_out.warps * int(sectors.sum()), laid_out.warps * int(packed.sum()))


@lru_cache(maxsize=256)
def request_numbers(shape: tuple[int, ...], layout: Blocked | Linear, vector_elements: int) -> NDArray[np.int64]:
    """Return the number of each element's request: one warp, one instruction."""
    warp, _, register = owners(shape, layout)
    instruction = register // vector_elements
    requests: NDArray[np.int64] = warp * (instruction.max() + 1) + instruction
    return requests.reshape(-1)


def transactions(kernel: Any, grid: Program, arguments: Mapping[str, object], binary: Binary) -> Transactions:
    """Count the sectors of a launch with arguments in host memory. The kernel's stores take effect."""
    if binary.target.backend != "cuda":
        raise ValueError(f"binary: sectors are counted for NVIDIA targets, not for {binary.target}")
    programs = _sample(grid)
    counter = _Counter(binary)
    interpret(kernel, grid, arguments, counter, programs[:1])
    if not counter.unknown:  # one unknown access makes the sum unknown
        interpret(kernel, grid, arguments, counter, programs[1:])
    return Transactions(
        sectors=_scaled([counter.sectors[program] for program in programs], prod(grid)),
        ideal=_scaled([counter.ideal[program] for program in programs], prod(grid)),
        sampled=len(programs),
        programs=prod(grid),
        unknown=tuple(sorted(counter.unknown)),
    )


def _sample(grid: Program) -> list[Program]:
    """Return the first and the last program, and programs spread between."""
    count = prod(grid)
    numbers = np.linspace(0, count - 1, min(count, MOST_PROGRAMS)).round().astype(int).tolist()
    return [(number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])) for number in numbers]


def _scaled(counts: list[int], programs: int) -> int:
    """Return the sum over all programs. The last program, often masked, represents itself only."""
    if len(counts) == programs:
        return sum(counts)
    first, *between, last = counts
    return first + last + round(sum(between) * (programs - 2) / len(between))


class _Counter(Observer):
    """Counts sectors by program."""

    def __init__(self, binary: Binary) -> None:
        self.sectors: Counter[Program] = Counter()
        self.ideal: Counter[Program] = Counter()
        self.unknown: set[str] = set()
        self._places = CompiledPlaces(binary)

    def load(self, access: Access) -> None:
        self._count(access)

    def store(self, access: Access) -> None:
        self._count(access)

    def atomic(self, access: Access) -> None:
        self.unknown.add(f"atomic at {_place(access)}")

    def _count(self, access: Access) -> None:
        laid_out = self._places.laid_out(access, access.addresses.size)
        vector_bytes = self._places.vector_bytes(access, laid_out.column if laid_out else None)
        if laid_out is None or laid_out.layout is None or vector_bytes is None:
            self.unknown.add(f"{access.kind} at {_place(access)}")
            return
        found = requested(laid_out, vector_bytes, access.element_bytes, access.addresses, access.mask)
        self.sectors[access.program] += found.sectors
        self.ideal[access.program] += found.ideal


def _same_line(compiled: LaidOutAccess | CompiledAccess, place: Located) -> bool:
    # Triton's cache may return a kernel compiled from another folder: compare file names only.
    return (compiled.kind, compiled.line, Path(compiled.file).name) == (place.kind, place.line, Path(place.file).name)


def _distinct_per_request(requests: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many distinct places each request touches."""
    if not places.size:
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort((places, requests))
    requests, places = requests[order], places[order]
    is_new = np.ones(len(places), dtype=bool)
    is_new[1:] = (requests[1:] != requests[:-1]) | (places[1:] != places[:-1])
    return np.bincount(requests[is_new])


def _place(access: Access) -> str:
    return f"{Path(access.file).name}:{access.line}"
