"""Which thread of a block accesses which element of global memory, read from the compiler's TTGIR."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilesmith.toolchain.compiler.binary import Binary
from tilesmith.toolchain.compiler.linear import Linear, as_linear, linear_owners

_FIELDS = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
# Layouts with further fields, such as those of clusters, distribute elements otherwise and do not match.
_BLOCKED = re.compile(r"#ttg\.blocked<\{" + ", ".join(rf"{name} = \[([\d, ]+)\]" for name in _FIELDS) + r"\}>")
_ALIAS = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
_CLUSTERED = re.compile(r"CGALayout|CTAsPerCGA")
_OPERATION = re.compile(
    r"\b(tt\.load|tt\.store|tt\.atomic_rmw|tt\.atomic_cas|ttg\.async_copy_global_to_local"
    r"|amdg(?:pu)?\.buffer_(?:load|store|atomic_\w+|load_to_local)) (.*) loc\((.*)\)$",
    re.MULTILINE,
)
_BULK = re.compile(
    r"\b(tt\.descriptor_load|tt\.descriptor_store|ttng\.async_tma_copy_\w+) .* loc\((.*)\)$", re.MULTILINE
)
_BLOCK = re.compile(r"tensor<((?:\d+x)+)(?:!tt\.ptr<[^>]*>|\w+), ")
_SLICE = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (#\w+)\}>$")
_LOCATION = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)
_POSITION = re.compile(r'^"([^"]+)":(\d+):(\d+)')


@dataclass(frozen=True)
class Blocked:
    """How `#ttg.blocked` distributes a tensor: for each dimension elements a thread, threads a warp, warps a block.

    `order` names the dimensions, the fastest first.
    """

    size_per_thread: tuple[int, ...]
    threads_per_warp: tuple[int, ...]
    warps_per_block: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class LaidOutAccess:
    """A global access of one source line. The layout is None where it is unknown, as in a cluster.

    - `shape`: the shape that the layout distributes. A slice has length 1 in the dimension that was cut; a scalar has
      no dimensions.
    - `warps`: how many warps access each element. Where a tensor is too small for all warps, every warp loads it;
      stores and asynchronous copies happen once.
    - `pipelined`: the load is copied to shared memory ahead of its use.
    - `bulk`: one instruction moves a whole tile.
    - `column`: only orders the accesses of one line.
    """

    kind: str  # "load", "store" or "atomic"
    file: str
    line: int
    shape: tuple[int, ...]
    layout: Blocked | Linear | None
    warps: int
    column: int = 0
    pipelined: bool = False
    bulk: bool = False


def accesses_of(binary: Binary) -> frozenset[LaidOutAccess]:
    """Return the global accesses of a kernel with their layouts over threads."""
    text = binary.assembly["ttgir"]
    layouts = _Layouts(text)
    locations = dict(_LOCATION.findall(text))
    found = set()
    for operation, typed, location in _OPERATION.findall(text):
        position = _position(location, locations)
        if position is not None:
            shape, layout = layouts.distributed(typed.rpartition(" : ")[2])
            pipelined = "to_local" in operation
            kind = next((kind for kind in ("store", "atomic") if kind in operation), "load")
            warps = _warps(shape, layout, binary.num_warps) if kind == "load" and not pipelined and layout else 1
            found.add(LaidOutAccess(kind, *position[:2], shape, layout, warps, position[2], pipelined))
    return frozenset(found | set(_bulk_accesses(text, locations)))


def owners(
    shape: tuple[int, ...], layout: Blocked | Linear
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return warp, lane and register of each element of a tensor; the first, where several hold it."""
    if isinstance(layout, Linear):
        return linear_owners(shape, layout)
    warp, lane, register = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    warps = lanes = registers = 1
    places = np.indices(shape)
    for dimension in layout.order:
        place = places[dimension]
        size, threads, count = (
            field[dimension] for field in (layout.size_per_thread, layout.threads_per_warp, layout.warps_per_block)
        )
        tile = size * threads * count
        register += (place % size + size * (place // tile)) * registers
        lane += place // size % threads * lanes
        warp += place // (size * threads) % count * warps
        registers *= min(size, shape[dimension]) * -(-shape[dimension] // tile)
        lanes *= threads
        warps *= count
    return warp, lane, register


def positions(text: str) -> dict[int, tuple[str, int]]:
    """Return source file and line by line number of a TTIR or TTGIR text."""
    locations = dict(_LOCATION.findall(text))
    found = {}
    for number, line in enumerate(text.splitlines()):
        place = re.search(r" loc\((#\w+|callsite.*)\)$", line)
        position = _position(place[1], locations) if place and not line.startswith("#loc") else None
        if position is not None:
            found[number] = position[:2]
    return found


class _Layouts:
    """The layouts that one TTGIR text names."""

    def __init__(self, text: str) -> None:
        self._aliases = dict(_ALIAS.findall(text))

    def distributed(self, type_text: str) -> tuple[tuple[int, ...], Blocked | Linear | None]:
        """Return shape and layout of an operation's pointers; of AMD's buffer operations, those of the values."""
        pointers = _BLOCK.search(type_text)
        if pointers is None:
            return (), Blocked((), (), (), ())
        shape, name = _numbers(pointers[1]), _until_closed(type_text[pointers.end() :])
        cut = _SLICE.match(name)
        parent = self._blocked(cut[2]) if cut else None
        if cut and parent is not None:
            dimension = int(cut[1])
            return (*shape[:dimension], 1, *shape[dimension:]), parent
        return shape, self._blocked(name) or self._linear(shape, name)

    def _blocked(self, name: str) -> Blocked | None:
        fields = _BLOCKED.fullmatch(self._aliases.get(name, name))
        return Blocked(*map(_numbers, fields.groups())) if fields else None

    def _linear(self, shape: tuple[int, ...], name: str) -> Linear | None:
        if any(_CLUSTERED.search(text) for text in (name, *self._aliases.values())):
            return None
        return as_linear(shape, name, tuple(self._aliases.items()))


def _bulk_accesses(text: str, locations: Mapping[str, str]) -> Iterator[LaidOutAccess]:
    for operation, location in _BULK.findall(text):
        position = _position(location, locations)
        if position is not None:
            file, line, column = position
            kind = "store" if "store" in operation or operation.endswith("local_to_global") else "load"
            yield LaidOutAccess(kind, file, line, (), None, 1, column, pipelined=kind == "load", bulk=True)


@cache
def _warps(shape: tuple[int, ...], layout: Blocked | Linear, num_warps: int) -> int:
    """Return how many warps hold each element."""
    if isinstance(layout, Linear):
        return 1 << sum(not any(basis) for basis in layout.warps)
    in_use = prod(
        min(count, -(-length // (size * threads)))
        for length, size, threads, count in zip(
            shape, layout.size_per_thread, layout.threads_per_warp, layout.warps_per_block, strict=True
        )
    )
    return num_warps // in_use


def _position(location: str, locations: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Return file, line and column; those of the inner function where a call was inlined."""
    direct = _POSITION.match(location)
    if direct:
        return direct[1], int(direct[2]), int(direct[3])
    nested = (_position(locations.get(name, ""), locations) for name in re.findall(r"#(loc\d*)", location))
    return next((position for position in nested if position is not None), None)


def _until_closed(text: str) -> str:
    """Return the text before the first unmatched closing bracket."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth < 0:
            return text[:place]
    return text


def _numbers(text: str | Sequence[str]) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(text))))
