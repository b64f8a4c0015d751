"""Memory transactions of a launch: what its programs touch in the interpreter, asked for as the compiler laid it out.

A request is what one warp asks for with one instruction; memory answers it in sectors of 32 bytes. How many it takes
depends on which addresses meet in a request, so the interpreter's addresses are dealt out to warps and registers by the
layout in the compiled kernel, and to instructions by the width of its vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.toolchain.compiler import Access as CompiledAccess
from tilesmith.toolchain.compiler import Binary
from tilesmith.toolchain.compiler.layouts import Blocked, LaidOutAccess, accesses_of, owners
from tilesmith.toolchain.interpreter import Access, Observer, interpret

SECTOR_BYTES = 32
MOST_PROGRAMS = 8

Program = tuple[int, int, int]


@dataclass(frozen=True)
class Transactions:
    """Sectors that all global loads and stores of a launch ask for, found by following some of its programs.

    `ideal` is what the same requests would take were their elements packed. The first and the last program count as
    themselves, those between stand for the rest. `unknown` are lines whose accesses are not counted.
    """

    sectors: int
    ideal: int
    sampled: int
    programs: int
    unknown: tuple[str, ...]


def transactions(kernel: Any, grid: Program, arguments: Mapping[str, object], binary: Binary) -> Transactions:
    """Counts a launch with arguments in host memory; what the kernel stores is stored."""
    if binary.target.backend != "cuda":
        raise ValueError(f"binary: sectors are counted for NVIDIA targets, not for {binary.target}")
    programs = _sample(grid)
    counter = _Counter(binary)
    interpret(kernel, grid, arguments, counter, programs)
    return Transactions(
        sectors=_scaled([counter.sectors[program] for program in programs], prod(grid)),
        ideal=_scaled([counter.ideal[program] for program in programs], prod(grid)),
        sampled=len(programs),
        programs=prod(grid),
        unknown=tuple(sorted(counter.unknown)),
    )


def _sample(grid: Program) -> list[Program]:
    """The first and the last program, and some spread between."""
    count = prod(grid)
    numbers = np.linspace(0, count - 1, min(count, MOST_PROGRAMS)).round().astype(int).tolist()
    return [(number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])) for number in numbers]


def _scaled(counts: list[int], programs: int) -> int:
    """The sum over all programs; a mask often shortens the last, which therefore stands for itself alone."""
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
        self._binary = binary
        self._laid_out = accesses_of(binary)

    def load(self, access: Access) -> None:
        self._count(access)

    def store(self, access: Access) -> None:
        self._count(access)

    def atomic(self, access: Access) -> None:
        self.unknown.add(f"atomic at {_place(access)}")

    def _count(self, access: Access) -> None:
        laid_out = self._laid_out_as(access)
        vector_bytes = self._vector_bytes(access)
        if laid_out is None or laid_out.layout is None or vector_bytes is None:
            self.unknown.add(f"{access.kind} at {_place(access)}")
            return
        elements = max(1, vector_bytes // access.element_bytes)
        active = access.mask.reshape(-1)
        requests = _requests(laid_out.shape, laid_out.layout, elements)[active]
        addresses = access.addresses.reshape(-1)[active].astype(np.int64)
        sectors = _distinct_per_request(requests, addresses // SECTOR_BYTES)
        packed = -(-_distinct_per_request(requests, addresses) * access.element_bytes // SECTOR_BYTES)
        self.sectors[access.program] += laid_out.warps * int(sectors.sum())
        self.ideal[access.program] += laid_out.warps * int(packed.sum())

    def _laid_out_as(self, access: Access) -> LaidOutAccess | None:
        """How the compiler laid this access out; None where it says nothing, or two things, about the line."""
        fitting = [
            one for one in self._laid_out if _same_line(one, access) and prod(one.shape) == access.addresses.size
        ]
        return fitting[0] if len(fitting) == 1 else None

    def _vector_bytes(self, access: Access) -> int | None:
        """What a thread moves with one instruction of this line; None where the binary has none, or several widths."""
        widths = {one.vector_bytes for one in self._binary.accesses if _same_line(one, access)}
        return widths.pop() if len(widths) == 1 else None


def _same_line(compiled: LaidOutAccess | CompiledAccess, access: Access) -> bool:
    # Triton's cache gives back what was compiled from the same source in another folder: only the file's name holds.
    return (compiled.kind, compiled.line, Path(compiled.file).name) == (
        access.kind,
        access.line,
        Path(access.file).name,
    )


@cache
def _requests(shape: tuple[int, ...], layout: Blocked, vector_elements: int) -> NDArray[np.int64]:
    """A number for the request that each element belongs to: one warp, one instruction."""
    warp, _, register = owners(shape, layout)
    instruction = register // vector_elements
    requests: NDArray[np.int64] = warp * (instruction.max() + 1) + instruction
    return requests.reshape(-1)


def _distinct_per_request(requests: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many places each request touches, by its number."""
    if not places.size:
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort((places, requests))
    requests, places = requests[order], places[order]
    is_new = np.ones(len(places), dtype=bool)
    is_new[1:] = (requests[1:] != requests[:-1]) | (places[1:] != places[:-1])
    return np.bincount(requests[is_new])


def _place(access: Access) -> str:
    return f"{Path(access.file).name}:{access.line}"
