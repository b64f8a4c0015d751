"""Many programs of a launch performed together, operation by operation.

One program is recorded without effect, with every operation that a store depends on. All programs that take the same
branches share that record: numpy performs each operation for all of them at once, loads and stores included. On a GPU
programs may run in any order, so the results are those of a correct kernel. A kernel whose programs wait for each
other, or that uses an operation not known here, raises CannotFollow before anything is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.observing.observers import Observer, Program
from tilesmith.toolchain.interpreter.running import Launched, recording
from tilesmith.toolchain.interpreter.tiles import Tile, whole_tiles
from tilesmith.toolchain.interpreter.together import shared_rows
from tilesmith.toolchain.interpreter.together.all_programs import (
    Array,
    CannotFollow,
    Node,
    ids_of,
    program_of,
    same_path,
)
from tilesmith.toolchain.interpreter.together.program_record import Branches, ProgramRecorder, is_mask
from tilesmith.toolchain.interpreter.together.shared_rows import Places, Shared, has_rows

MOST_ELEMENTS = 1 << 18  # of one block, over all programs of a chunk; larger ones leave the CPU's cache
MORE_FOR_PRODUCTS = 4  # times as many, since more programs share operands (tutorial 09: 61 to 40 s)
FEW_PROGRAMS = 8  # a path of fewer programs is not worth recording
MOST_PATHS = 64  # that few programs take, before all programs run one by one
TRIED_PROGRAMS = 3  # performed without effect, to see that the record is right

_PRODUCTS = {"dot": ((0,), (1,), (2,)), "dot_scaled": ((0, 1), (3, 4), (9,))}  # the arguments of each operand


class Lockstep(Branches):
    """Performs the record of one program for several programs, given by their numbers."""

    def __init__(self, recorder: ProgramRecorder, order: list[Node], programs: NDArray[np.int64], grid: Program):
        self._builder = recorder.builder
        super().__init__(ids_of(programs, grid), self._builder.memory.readable)
        self._recorder = recorder
        self._order = order
        self._programs = programs
        self._grid = grid
        shares = any(node.name in _PRODUCTS for node in order) and not self._builder.memory.is_watched
        self._sharing = shared_rows.Sharing() if shares else None
        self._places: Places | None = None  # of the operation that is performed now, where it needs fewer rows
        self._uses: dict[Node, int] = {}
        for node in order:
            self._uses.update(dict.fromkeys(node.inputs(), node.number))

    def perform(self) -> None:
        """Perform all operations, with their effects."""
        for _ in self._perform(with_effects=True):
            pass

    def agrees(self) -> bool:
        """Perform all operations without effect. Return whether the first program does as it did when recorded."""
        found = [[one[0] for one in arrays] for arrays in self._perform(with_effects=False)]
        pairs = zip(found, self._recorder.stored, strict=True)
        return all(
            np.array_equal(mine, recorded, equal_nan=mine.dtype.kind == "f")
            for arrays, stored in pairs
            for mine, recorded in zip(arrays, stored, strict=True)
        )

    def _perform(self, *, with_effects: bool) -> Iterator[list[Array]]:
        """Yield what each effect is given: pointers, value and mask in the order of the arguments."""
        for node in self._order:
            self._places = shared_rows.common_places(map(self._known.get, node.inputs()))
            if node.name == "load":
                self._known[node] = self._shared(self._loaded(node))
            elif node.name in ("store", "atomic"):
                self._places = None
                handles = self._handles(node)
                yield [one.data for one in handles if isinstance(one, TensorHandle)]
                if with_effects:
                    self._known[node] = self._accessed(node, handles)
                elif node.name == "atomic":
                    self._known[node] = np.zeros_like(handles[2].data)
            elif node.name in ("splat", "tile"):
                self._known[node] = self._of_scalars(node)
            elif node.name in _PRODUCTS:
                self._known[node] = self._product(node)
            else:
                self._known[node] = self._shared(self._evaluate(node))
            for one in node.inputs():
                if self._uses[one] == node.number:
                    self._known.pop(one, None)

    def _shared(self, value: Any) -> Any:
        return value if self._places is None or not has_rows(value) else Shared(value, self._places)

    def _of_scalars(self, node: Node) -> Any:
        """Return a block that follows from scalars, with one row for each different value of these."""
        scalars = [self._row(one) for one in (node.arguments if node.name == "tile" else node.arguments[1:])]
        scalars, places = (scalars, None) if self._sharing is None else self._sharing.grouped(scalars)
        if node.name == "tile":  # computed by the access, unless that can do without
            pairs = zip(scalars, node.arguments, strict=True)
            block: Any = Tile(node.function, [TensorHandle(one, argument.dtype) for one, argument in pairs])  # type: ignore[arg-type]
        else:
            shape = node.handle.data.shape
            block = np.broadcast_to(scalars[0].reshape(-1, *[1] * len(shape)), (len(scalars[0]), *shape))
        return block if places is None else Shared(block, places)

    def _product(self, node: Node) -> Any:
        """Return a product. An operand that several programs multiply is converted once."""
        is_shared = any(isinstance(self._known.get(one), Shared) for one in node.inputs())
        if self._places is not None or not is_shared or len(node.handle.data.shape) != 2:
            return self._shared(self._evaluate(node))
        arguments = list(node.arguments)
        places = [self._operand(arguments, one) for one in _PRODUCTS[node.name]]
        self._builder.product = partial(shared_rows.product, places)
        try:
            return node.function(*arguments).data  # type: ignore[misc]
        finally:
            del self._builder.product

    def _operand(self, arguments: list[Any], which: Sequence[int]) -> Places:
        """Put the rows of an operand of a product in its place; return the row of each program."""
        handles = [(place, arguments[place]) for place in which if isinstance(arguments[place], TensorHandle)]
        nodes = [one.node for _, one in handles if getattr(one, "node", None) is not None]
        self._places = shared_rows.common_places(map(self._known.get, nodes))
        for place, handle in handles:
            arguments[place] = TensorHandle(self._row(handle), handle.dtype)
        if self._places is not None:
            return self._places
        differs = any(has_rows(arguments[place].data) for place, _ in handles)
        return np.arange(self._programs.size) if differs else np.zeros(self._programs.size, np.intp)

    def _row(self, argument: Any) -> Any:
        row = super()._row(argument)
        if isinstance(row, Shared):
            row = row.values if row.places is self._places else row.of_each_program()
        return row.computed() if isinstance(row, Tile) else row

    def _loaded(self, node: Node) -> Any:
        memory = self._builder.memory
        tile: Any = self._known.get(getattr(node.arguments[0], "node", node))
        tile = tile.values if isinstance(tile, Shared) and tile.places is self._places else tile
        whole = isinstance(tile, Tile) and not memory.is_watched
        found = whole_tiles(memory, node.handle.data.shape, *tile.fields) if whole else None
        return self._accessed(node, self._handles(node)) if found is None else found

    def _handles(self, node: Node) -> list[Any]:
        rows = [self._row(one) for one in node.arguments]
        counts = [len(row) for row, one in zip(rows, node.arguments, strict=True) if isinstance(one, TensorHandle)]
        count = self._programs.size if node.name == "atomic" else max(counts)
        return [
            TensorHandle(np.require(np.broadcast_to(row, (count, *row.shape[1:])), requirements=["C", "W"]), one.dtype)
            if isinstance(one, TensorHandle)
            else one
            for row, one in zip(rows, node.arguments, strict=True)
        ]

    def _accessed(self, node: Node, handles: list[Any]) -> Any:
        memory = self._builder.memory
        pointers, masks = handles[node.axis], [one for one in handles if is_mask(one)]
        memory.place = node.place
        try:
            if memory.holds(pointers, masks[-1].data if masks else None):
                self._builder.grid_idx = program_of(int(self._programs[0]), self._grid)
                result = node.function(*handles)  # type: ignore[misc]
                return None if result is None else result.data
            if self._places is not None:
                self._places = None
                handles = self._handles(node)
            return self._one_by_one(node, handles)
        finally:
            memory.place = None
            self._builder.undefined.end()  # the sample follows undefined lanes

    def _one_by_one(self, node: Node, handles: list[Any]) -> Any:
        """Perform an access that is partly out of bounds, so that messages name the program."""
        results = []
        for row in range(len(handles[node.axis].data)):
            self._builder.grid_idx = program_of(int(self._programs[row]), self._grid)
            own = [TensorHandle(one.data[row], one.dtype) if isinstance(one, TensorHandle) else one for one in handles]
            results.append(node.function(*own))  # type: ignore[misc]
        return None if results[0] is None else np.stack([one.data for one in results])


def perform_together(
    run: Callable[[Program], ProgramRecorder], grid: Program, arguments: Mapping[str, Any], programs: list[Program]
) -> list[Program]:
    """Perform programs together where their paths agree. Return those that must run one by one.

    `run(program)` records one program.
    """
    left = np.array([x + grid[0] * (y + grid[1] * z) for x, y, z in programs], dtype=np.int64)
    alone: list[int] = []
    paths = 0
    while left.size and paths < MOST_PATHS:
        try:
            record = run(program_of(int(left[0]), grid))
            order = record.order(arguments)
            alike = same_path(record, left, grid)
            if (few := int(alike.sum()) < FEW_PROGRAMS) or not record.effects:
                paths += few
                alone += left[alike].tolist() if few else []
            else:
                _perform_all(record, order, left[alike], grid)
        except CannotFollow:
            break
        left = left[~alike]
    return [program_of(number, grid) for number in sorted([*alone, *left.tolist()])]


def _perform_all(record: ProgramRecorder, order: list[Node], programs: NDArray[np.int64], grid: Program) -> None:
    _try(Lockstep(record, order, programs[:TRIED_PROGRAMS], grid))
    widest = max((node.handle.data.size for node in order), default=1)
    has_products = any(node.name in _PRODUCTS for node in order)
    size = max(1, MOST_ELEMENTS * (MORE_FOR_PRODUCTS if has_products else 1) // widest)
    for start in range(0, programs.size, size):
        Lockstep(record, order, programs[start : start + size], grid).perform()


def _try(lockstep: Lockstep) -> None:
    try:
        agrees = lockstep.agrees()
    except Exception as error:
        raise CannotFollow(f"{type(error).__name__}: {error}") from error
    if not agrees:
        raise CannotFollow("its record differs")


def interpret_together(launched: Launched, observer: Observer | None, programs: list[Program]) -> list[Program]:
    """Perform programs of a launch on host tensors together. Return those that must run one by one."""
    if launched.kernel.is_gluon() or len(programs) < FEW_PROGRAMS:
        return programs
    with recording(launched, [] if observer is None else [observer], ProgramRecorder) as run:
        return perform_together(run, launched.grid, launched.arguments, programs)
