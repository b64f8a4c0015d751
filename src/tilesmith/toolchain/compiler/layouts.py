"""Which thread of a block asks for which element: the compiler's own answer, out of the text it lowers from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilesmith.toolchain.compiler.binary import Binary

_FIELDS = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
# Further fields, as for blocks that share work in a cluster, change who owns what: such a layout is not matched.
_BLOCKED = re.compile(
    r"^#(\w+) = #ttg\.blocked<\{" + ", ".join(rf"{name} = \[([\d, ]+)\]" for name in _FIELDS) + r"\}>", re.MULTILINE
)
_OPERATION = re.compile(
    r"\b(tt\.load|tt\.store|ttg\.async_copy_global_to_local) .*? : "
    r"(?:tensor<((?:\d+x)+)!tt\.ptr<[^,\n]*>, #(\w+(?:\.slice<\{dim = \d+, parent = #\w+\}>)?)|!tt\.ptr<)"
    r"[^\n]* loc\((.*)\)$",
    re.MULTILINE,
)
_SLICE = re.compile(r"ttg\.slice<\{dim = (\d+), parent = #(\w+)\}>")
_LOCATION = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)
_POSITION = re.compile(r'^"([^"]+)":(\d+):\d+')


@dataclass(frozen=True)
class Blocked:
    """How `#ttg.blocked` deals out a tensor: per dimension elements of a thread, threads of a warp, warps of a block.

    `order` names the dimensions, the fastest first.
    """

    size_per_thread: tuple[int, ...]
    threads_per_warp: tuple[int, ...]
    warps_per_block: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class LaidOutAccess:
    """A load or store of one source line. The layout is None where it is not a blocked one, or a slice of one.

    `shape` is what the layout deals out: that of a slice has length 1 where it was cut, that of a scalar is empty.
    `warps` is how many warps ask for each element: where a tensor is too small to give every warp its own, all load
    it, while stores and asynchronous copies are done once.
    """

    kind: str  # "load" or "store"
    file: str
    line: int
    shape: tuple[int, ...]
    layout: Blocked | None
    warps: int


def accesses_of(binary: Binary) -> frozenset[LaidOutAccess]:
    """The global loads and stores of a kernel as they are laid out over its threads, without atomics."""
    text = binary.assembly["ttgir"]
    layouts = {name: Blocked(*map(_numbers, fields)) for name, *fields in _BLOCKED.findall(text)}
    locations = dict(_LOCATION.findall(text))
    found = set()
    for operation, lengths, layout_name, location in _OPERATION.findall(text):
        position = _position(location, locations)
        if position is not None:
            shape, layout = _dealt_out(_numbers(lengths), layout_name, layouts)
            warps = _warps(shape, layout, binary.num_warps) if operation == "tt.load" and layout else 1
            found.add(LaidOutAccess("store" if operation == "tt.store" else "load", *position, shape, layout, warps))
    return frozenset(found)


def owners(shape: tuple[int, ...], layout: Blocked) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Warp, lane and register of each element of a tensor; of several owners, the first."""
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


def _dealt_out(
    shape: tuple[int, ...], name: str, layouts: dict[str, Blocked]
) -> tuple[tuple[int, ...], Blocked | None]:
    if not shape:
        return shape, Blocked((), (), (), ())
    cut = _SLICE.match(name)
    if cut is None:
        return shape, layouts.get(name)
    dimension = int(cut[1])
    return (*shape[:dimension], 1, *shape[dimension:]), layouts.get(cut[2])


def _warps(shape: tuple[int, ...], layout: Blocked, num_warps: int) -> int:
    """How many warps hold each element."""
    in_use = prod(
        min(count, -(-length // (size * threads)))
        for length, size, threads, count in zip(
            shape, layout.size_per_thread, layout.threads_per_warp, layout.warps_per_block, strict=True
        )
    )
    return num_warps // in_use


def _position(location: str, locations: dict[str, str]) -> tuple[str, int] | None:
    """File and line. Of an inlined call, the inner one comes first."""
    direct = _POSITION.match(location)
    if direct:
        return direct[1], int(direct[2])
    nested = (_position(locations.get(name, ""), locations) for name in re.findall(r"#(loc\d*)", location))
    return next((position for position in nested if position is not None), None)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
