"""Record what the programs of one launch do in the interpreter.

Memory use does not grow with the grid: the trace counts accesses and keeps distinct address patterns only, which most
programs of a launch share. A few programs are kept in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.inspect.model import Operation, Program, Tile
from tilesmith.lab.inspect.tracing.number_log import NumberLog
from tilesmith.lab.inspect.tracing.sanitizer import Sanitizer
from tilesmith.lab.inspect.tracing.shadow_memory import ShadowMemory, StorageShadow, Where
from tilesmith.lab.inspect.tracing.steps import StepLog
from tilesmith.toolchain.interpreter import (
    Access,
    Birth,
    Dot,
    Doubt,
    Hint,
    Misuse,
    Observer,
    OutOfBounds,
    Rounding,
    Step,
    Undefined,
)
from tilesmith.toolchain.interpreter import Operation as SeenOperation

MOST_PATTERNS = 48  # of one access; a gather has a new pattern in every program
MOST_PATTERN_BYTES = 24 << 20
MOST_OPERATIONS_SHOWN = 400
MOST_EXECUTIONS_SHOWN = 2  # of one access in one program
MOST_TILES = 16384
MOST_STEPPED = 4  # programs whose statements are kept
_LINE_BYTES = 128  # patterns that differ by whole cache lines are the same


class Place(NamedTuple):
    """Source position, argument and shape of an access."""

    kind: str
    file: str
    line: int
    column: int
    argument: str | None
    element_bytes: int
    shape: tuple[int, ...]


@dataclass
class Pattern:
    """Addresses of one execution as distances from the start of a cache line, and how often this pattern occurred."""

    distances: NDArray[Any]
    mask: NDArray[np.bool_]
    all_differ: bool
    in_a_row: bool  # each active lane accesses the element after the previous lane's
    count: int = 0


@dataclass
class Site:
    """All executions of one access."""

    place: Place
    executions: int = 0
    lanes: int = 0
    active: int = 0
    unique: int = 0  # distinct elements of this access
    new: int = 0  # elements that no access of this kind touched before
    again: int = 0  # elements that the same program touched before
    reaches_end: bool = False
    bounded: bool = False  # by a mask or a descriptor
    values: tuple[float, float] | None = None
    patterns: dict[tuple[bytes, bytes], Pattern] = field(default_factory=dict)
    pattern_bytes: int = 0
    seen: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def always_full(self) -> bool:
        return self.active == self.lanes


@dataclass
class Shown:
    """A program kept in full: the addresses of each access, and the operations."""

    accesses: list[tuple[Place, NDArray[np.uint64], NDArray[np.bool_]]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    executions: Counter[Place] = field(default_factory=Counter)


class Trace(Observer):
    """Observes one launch. Operations are counted in `followed` programs; `shown` programs are kept in full."""

    def __init__(
        self,
        grid: Program,
        shadows: ShadowMemory,
        followed: Collection[Program],
        shown: Collection[Program],
        measures_precision: bool = False,
    ) -> None:
        self.measures_precision = measures_precision
        self.numbers = NumberLog()
        self.grid = grid
        self.shadows = shadows
        self.sites: dict[Place, Site] = {}
        self.sanitizer = Sanitizer(grid, shadows)
        self.traced: dict[Program, None] = {}
        self.tiles: dict[Program, dict[str, list[tuple[int, int]]]] = {}
        self.dot_flops: Counter[tuple[str, int, str]] = Counter()
        self.work: Counter[tuple[str, int, str]] = Counter()  # by file, line and kind; followed programs only
        self.followed_seen: dict[Program, None] = {}
        self.covered = ""  # what is known of the programs that are not traced
        self.reaches_others = False  # accesses tensors that are not arguments, through a table of addresses
        self.shown = {program: Shown() for program in shown}
        self.steps = {program: StepLog() for program in list(dict.fromkeys(shown))[:MOST_STEPPED]}
        self.stepped = self.steps.keys()
        self._followed = frozenset(followed)

    def follows(self, program: Program) -> bool:
        self.traced[program] = None
        if program not in self._followed:
            return False
        self.followed_seen[program] = None
        return True

    def load(self, access: Access) -> Doubt | None:
        self._access(access)
        return self.sanitizer.doubt(access)

    def undefined(self, undefined: Undefined, lanes: NDArray[np.bool_], program: Program) -> None:
        self.sanitizer.undefined(undefined, lanes, program)

    def store(self, access: Access) -> None:
        self._access(access)

    def atomic(self, access: Access) -> None:
        self._access(access)

    def dot(self, dot: Dot) -> None:
        single = dot.operand_format == "fp32"
        dot_format = f"{dot.operand_format} {dot.input_precision}" if single else dot.operand_format
        self.dot_flops[dot.file, dot.line, dot_format] += 2 * dot.batch * dot.m * dot.n * dot.k
        self.numbers.dot(dot)

    def not_finite(self, birth: Birth) -> None:
        self.numbers.not_finite(birth)

    def rounding(self, rounding: Rounding) -> None:
        self.numbers.rounding(rounding)

    def operation(self, operation: SeenOperation) -> None:
        self.numbers.operation(operation)
        flops = operation.elements * (2 if operation.name == "fma" else 1)
        kind = operation.kind
        if kind == "reduce" and operation.format.startswith(("int", "uint")):
            kind = "integer"
        if kind not in ("load", "store", "atomic", "dot"):
            self.work[operation.file, operation.line, kind] += flops
        shown = self.shown.get(operation.program)
        if shown is not None and len(shown.operations) < MOST_OPERATIONS_SHOWN:
            shown.operations.append(
                Operation(
                    operation.kind, operation.name, operation.line, operation.shape, operation.format,
                    operation.elements, operation.inputs, operation.argument,
                )
            )  # fmt: skip

    def step(self, step: Step) -> bool:
        return self.steps[step.program].step(step)

    def false_hint(self, hint: Hint) -> None:
        self.sanitizer.false_hint(hint)

    def barrier(self, program: Program, certain: bool) -> None:
        self.sanitizer.order.barrier(certain)

    def out_of_bounds(self, error: OutOfBounds) -> None:
        self.sanitizer.out_of_bounds(error)

    def misuse(self, misuse: Misuse) -> None:
        self.sanitizer.misuse(misuse)

    def program_number(self, program: Program) -> int:
        """Return the program's number in the shadow memory, counted from 1."""
        return 1 + program[0] + self.grid[0] * (program[1] + self.grid[1] * program[2])

    def tiles_of(self, program: Program) -> tuple[Tile, ...]:
        return tuple(Tile(name, tuple(box)) for name, box in self.tiles.get(program, {}).items())

    def distinct_elements(self, sites: Iterable[Site]) -> int:
        """Return how many elements several accesses of one argument touch, each counted once."""
        touched: dict[tuple[int, int], NDArray[np.bool_]] = {}
        for site in sites:
            for start, places in site.seen.items():
                width = max(1, site.place.element_bytes // self.shadows.all[start].granule)
                touched[start, width] = touched.get((start, width), False) | places
        return sum(int(np.count_nonzero(places)) // width for (_, width), places in touched.items())

    def _access(self, access: Access) -> None:
        unmasked = bool(access.mask.all())
        active = access.addresses.reshape(-1) if unmasked else access.addresses[access.mask]
        argument = access.argument
        if argument is None and active.size:
            argument = self.shadows.argument_at(int(active[0]))
        place = Place(
            access.kind, access.file, access.line, access.column, argument, access.element_bytes,
            access.addresses.shape if access.addresses.size > 1 else (),
        )  # fmt: skip
        if access.program in self.steps:
            self.steps[access.program].access(access, argument)
        site = self.sites.get(place)
        if site is None:
            site = self.sites[place] = Site(place)
        site.bounded = site.bounded or access.bounded or access.masked
        site.executions += 1
        site.lanes += access.mask.size
        site.active += active.size
        if access.bounded:
            self.sanitizer.tile(access, argument)
        if active.size == 0:
            return
        pattern = self._pattern(site, access, active, unmasked)
        shadow = self.shadows.of(argument, int(active[0]))
        self.reaches_others |= argument is None
        if shadow is not None:
            self._note(site, access, shadow, active, pattern)
        self._show(site, access, shadow, active)

    def _pattern(self, site: Site, access: Access, active: NDArray[np.uint64], unmasked: bool) -> Pattern | None:
        """Count and return this execution's pattern; None once too many patterns are kept."""
        start = int(active.min()) // _LINE_BYTES * _LINE_BYTES
        distances = access.addresses.astype(np.int64) - start
        distances = distances if unmasked else np.where(access.mask, distances, 0)
        key = (distances.tobytes(), b"" if unmasked else np.packbits(access.mask).tobytes())
        pattern = site.patterns.get(key)
        if pattern is None:
            if len(site.patterns) >= MOST_PATTERNS or site.pattern_bytes > MOST_PATTERN_BYTES:
                return None
            mask = np.array(access.mask)
            taken = distances[mask]
            in_a_row = taken.ndim == 1 and bool(np.all(np.diff(taken) == access.element_bytes))
            all_differ = in_a_row or np.unique(taken).size == taken.size
            pattern = site.patterns[key] = Pattern(distances, mask, all_differ, in_a_row)
            site.pattern_bytes += distances.nbytes + mask.nbytes
        pattern.count += 1
        return pattern

    def _note(
        self, site: Site, access: Access, shadow: StorageShadow, active: NDArray[np.uint64], pattern: Pattern | None
    ) -> None:
        where = self._places(access, shadow, active, pattern)
        count = where.stop - where.start if isinstance(where, slice) else where.size
        if not count:
            return
        number = self.program_number(access.program)
        seen = site.seen.get(shadow.start)
        if seen is None:
            seen = site.seen[shadow.start] = np.zeros(shadow.writer.size, dtype=bool)
        width = max(1, access.element_bytes // shadow.granule)
        site.unique += int(count - np.count_nonzero(seen[where])) // width
        seen[where] = True
        last = where.stop - 1 if isinstance(where, slice) else int(where.max())
        site.reaches_end = site.reaches_end or last == shadow.writer.size - 1
        new, again = self.sanitizer.access(access, site.place.argument, shadow, where, number)
        site.new += new // width
        site.again += again // width
        if access.kind != "load":
            self._tile(access.program, site.place.argument, active)

    @staticmethod
    def _places(access: Access, shadow: StorageShadow, active: NDArray[np.uint64], pattern: Pattern | None) -> Where:
        """Return the places inside the storage that an access touches, each once."""
        first, last = int(active[0]), int(active[-1])
        if pattern is not None and pattern.in_a_row and access.element_bytes == shadow.granule:
            start = max(0, (first - shadow.start) // shadow.granule)
            stop = min(shadow.writer.size, (last - shadow.start) // shadow.granule + 1)
            return slice(start, max(start, stop))
        inside = (active >= np.uint64(shadow.start)) & (active <= np.uint64(shadow.end - access.element_bytes))
        places = shadow.places(active if inside.all() else active[inside], access.element_bytes)
        return places if pattern is not None and pattern.all_differ else np.unique(places)

    def _tile(self, program: Program, argument: str | None, active: NDArray[np.uint64]) -> None:
        tensor = self.shadows.tensors.get(argument or "")
        if tensor is None or (len(self.tiles) >= MOST_TILES and program not in self.tiles):
            return
        ends = active if tensor.dim() > 1 else np.array([active.min(), active.max()])
        offsets = (ends.astype(np.int64) - tensor.data_ptr()) // tensor.element_size()
        box = box_around(offsets, tensor)
        boxes = self.tiles.setdefault(program, {})
        old = boxes.get(argument or "")
        if old is not None:
            box = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(old, box, strict=True)]
        boxes[argument or ""] = box

    def _show(self, site: Site, access: Access, shadow: StorageShadow | None, active: NDArray[np.uint64]) -> None:
        if access.program in self._followed and shadow is not None:
            site.values = _widened(site.values, _values(access, shadow, active))
        shown = self.shown.get(access.program)
        if shown is None:
            return
        shown.executions[site.place] += 1
        if shown.executions[site.place] <= MOST_EXECUTIONS_SHOWN:
            shown.accesses.append((site.place, access.addresses.copy(), access.mask.copy()))


def box_around(offsets: NDArray[np.int64], tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Return, per dimension, the first index and one past the last index of the elements at these offsets."""
    box = [(0, 1)] * tensor.dim()
    rest = offsets
    strides = tensor.stride()
    for dimension in sorted(range(tensor.dim()), key=lambda one: -strides[one]):
        stride, size = strides[dimension], tensor.size(dimension)
        if stride <= 0 or size <= 1:
            continue
        index = np.clip(rest // stride, 0, size - 1)
        rest = rest - index * stride
        box[dimension] = (int(index.min()), int(index.max()) + 1)
    return box


def _values(access: Access, shadow: StorageShadow, active: NDArray[np.uint64]) -> tuple[float, float] | None:
    """Return the smallest and the largest finite value of an access."""
    if access.value is not None:
        values = np.broadcast_to(access.value, access.mask.shape)[access.mask].astype(np.float64)
    else:
        values = shadow.contents(active)
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


def _widened(one: tuple[float, float] | None, other: tuple[float, float] | None) -> tuple[float, float] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def sample(grid: Program, most: int) -> list[Program]:
    """Return the first and the last program, the corners of the grid, and programs spread between."""
    count = prod(grid)
    corners = {(x, y, z) for x in {0, grid[0] - 1} for y in {0, grid[1] - 1} for z in {0, grid[2] - 1}}
    numbers = np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
    spread = [(n % grid[0], n // grid[0] % grid[1], n // (grid[0] * grid[1])) for n in numbers]
    chosen = dict.fromkeys((spread[0], spread[-1], *sorted(corners), *spread))
    return list(chosen)[: max(most, 2)]
