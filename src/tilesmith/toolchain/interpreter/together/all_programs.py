"""The addresses of every program of a launch, computed for many programs at once.

One program runs and records how its addresses, masks and branches follow from `tl.program_id`. All programs that take
the same branches share that record, so numpy evaluates it for all of them together. A program that takes another branch
is the next to run. Nothing is stored, and values that do not decide an address are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle, _interpreter

from tilesmith.toolchain.interpreter import tiles
from tilesmith.toolchain.interpreter.numerics import numpy_dtype
from tilesmith.toolchain.interpreter.observing.observers import Program
from tilesmith.toolchain.interpreter.program import ProgramBuilder

Array = NDArray[Any]
MOST_BRANCHES = 20_000  # of one program; more is a loop that waits for another program

_MASKED = {"masked_load": (1, "load"), "masked_store": (2, "store"), "atomic_rmw": (3, "atomic")}
_UNMASKED = {"load": "load", "store": "store", "atomic_cas": "atomic"}
_CANNOT = ("descriptor", "tensor_pointer", "make_block_ptr", "advance", "atomic_load", "atomic_store", "atomic_poll")


class CannotFollow(Exception):
    """Addresses or branches depend on something that cannot be computed for all programs; the message says on what."""


@dataclass(eq=False)
class Node:
    """How one integer block follows from others. Leaves have no function; `axis` is that of a program id."""

    number: int
    name: str
    function: Callable[..., Any] | None = None
    arguments: tuple[Any, ...] = ()
    axis: int = 0
    handle: Any = None  # of the program that ran: its type counts
    place: tuple[str, int] | None = None  # of an access: file and line

    def inputs(self) -> Iterator[Node]:
        for argument in self.arguments:
            node = getattr(argument, "node", None)
            if node is not None:
                yield node


@dataclass
class Recorded:
    """One access of the program that ran: its pointers and mask, as handles with nodes or constants."""

    kind: str
    pointers: Any
    mask: Any
    argument: str | None
    element_bytes: int


@dataclass
class PathRecorder:
    """Records one program while it runs."""

    builder: ProgramBuilder
    branches: list[tuple[Any, Any]] = field(default_factory=list)
    accesses: list[Recorded] = field(default_factory=list)
    _count: int = 0
    _inside: bool = False

    def __enter__(self) -> PathRecorder:
        self._names = self.builder.operation_names
        for name in self._names:
            wrapped = partial(self._call, name.removeprefix("create_"), getattr(self.builder, name))
            setattr(self.builder, name, wrapped)
        self.builder.path = self
        return self

    def __exit__(self, *error: Any) -> None:
        self.builder.path = None
        for name in self._names:
            delattr(self.builder, name)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record no operation inside the context."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def branch(self, handle: Any, value: Any) -> None:
        """Note that the program's path depends on this value."""
        node = getattr(handle, "node", None)
        if node is None:
            return
        _refuse_opaque(node, "a branch")
        self.branches.append((handle, value))
        if len(self.branches) > MOST_BRANCHES:
            raise CannotFollow("a loop waits for another program")

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._inside:
            return function(*arguments, **options)
        # Triton 3.6 passes shapes as tl.tuple, where an unknown attribute is a ValueError.
        arguments = tuple(tuple(one) if isinstance(one, tl.tuple) else one for one in arguments)
        if name in ("descriptor_load", "descriptor_store"):
            return self._access_tile(name, arguments)
        if any(name.startswith(each) for each in _CANNOT):
            raise CannotFollow(f"the kernel uses {name}")
        self._inside = True
        try:
            if name in _MASKED or name in _UNMASKED:
                return self._access(name, function, arguments, options)
            result = function(*arguments, **options)
        finally:
            self._inside = False
        if name == "get_program_id":
            result.node = self._node(name, axis=int(arguments[0]), handle=result)
        else:
            self._follow(name, function, arguments, result)
        return result

    def _follow(self, name: str, function: Callable[..., Any], arguments: Sequence[Any], result: Any) -> None:
        """Note how the result of an operation follows from its arguments."""
        if any(getattr(argument, "node", None) is not None for argument in arguments):
            for one in result if isinstance(result, tuple) else (result,):
                if isinstance(one, TensorHandle):
                    known = one.data.dtype.kind in "iub" and name in EVALUATED and not isinstance(result, tuple)
                    one.node = self._node(name, function, arguments, handle=one) if known else self._opaque(name)

    def _access(self, name: str, function: Callable[..., Any], arguments: Sequence[Any], options: Any) -> Any:
        pointers = arguments[1] if name == "atomic_rmw" else arguments[0]
        place, kind = _MASKED.get(name, (None, _UNMASKED.get(name, "")))
        mask = None if place is None else arguments[place]
        element_bytes = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        argument = getattr(pointers.dtype, "argument", None)
        self.accesses.append(Recorded(kind, pointers, mask, argument, element_bytes))
        if kind == "store":
            return None
        if kind == "atomic":
            shape = np.broadcast_shapes(pointers.data.shape)
            value = arguments[2]
            result = TensorHandle(np.zeros(shape, value.data.dtype), value.dtype.scalar)
            result.node = self._opaque("atomic")
            return result
        lanes = True if mask is None else np.asarray(mask.data)
        if np.all(self.builder.memory.readable(pointers.data, element_bytes) | ~np.asarray(lanes, dtype=bool)):
            result = function(*arguments, **options)
        else:  # out of bounds: its value does not matter, its address does
            element = pointers.get_element_ty()
            result = TensorHandle(np.zeros(pointers.data.shape, numpy_dtype(element)), element)
        if result.data.dtype.kind in "iub" and not result.dtype.scalar.is_floating():
            result.node = self._node("load", _load, (pointers, mask, None), handle=result)
        elif any(getattr(one, "node", None) is not None for one in (pointers, mask)):
            result.node = self._opaque("a loaded float")
        return result

    def _access_tile(self, name: str, arguments: Sequence[Any]) -> Any:
        """Record an access through a descriptor as a masked access."""
        descriptor, *values, indices = arguments[: 2 + (name == "descriptor_store")]
        if getattr(descriptor, "round_f32_to_tf32", False):
            raise CannotFollow("a descriptor rounds to tf32")
        fields, tile = tiles.fields_of(descriptor, indices), []
        for function in (tiles.addresses_of, tiles.mask_of):
            of_block = partial(function, tuple(descriptor.block_shape))
            one = of_block(*fields)
            tile.append(TensorHandle(one.data[0], one.dtype))
            if any(getattr(field, "node", None) is not None for field in fields):
                tile[-1].node = self._node("tile", of_block, fields, handle=tile[-1])
        with self.paused():
            if values:
                return self._access("masked_store", self.builder.store_tile, (tile[0], *values, tile[1]), {})
            return self._access("masked_load", self.builder.load_tile, (*tile, tiles.padding_of(descriptor)), {})

    def evaluation(self, programs: NDArray[np.int64], grid: Program) -> Evaluation:
        """Return what evaluates this record for other programs."""
        return Evaluation(ids_of(programs, grid), self.builder.memory.readable)

    def _node(
        self, name: str, function: Callable[..., Any] | None = None, arguments: Sequence[Any] = (), **rest: Any
    ) -> Node:
        self._count += 1
        handle = rest.pop("handle", None)
        node = Node(self._count, name, function, tuple(map(_without_data, arguments)), **rest)
        if handle is not None:
            node.handle = TensorHandle(np.broadcast_to(np.False_, handle.data.shape), handle.dtype)
            node.handle.node = node
        return node

    def lose(
        self, inputs: Sequence[Any], results: Sequence[Any], name: str, function: Callable[..., Any] | None = None
    ) -> None:
        """Note that results follow from inputs by `function`, which addresses do not follow."""
        if any(getattr(one, "node", None) is not None for one in inputs):
            for one in results:
                one.node = self._opaque(name)

    @staticmethod
    def _opaque(name: str) -> Node:
        return Node(-1, name)


EVALUATED = frozenset(
    {
        *("add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "idiv", "shl", "lshr", "ashr", "and", "or", "xor"),
        *("minsi", "minui", "maxsi", "maxui", "iabs", "umulhi", "select", "addptr", "int_to_ptr", "ptr_to_int"),
        *("int_cast", "bitcast", "sext", "zext", "trunc", "splat", "expand_dims", "broadcast", "reshape", "trans"),
        *(f"icmp{one}" for one in ("EQ", "NE", "SLT", "SLE", "SGT", "SGE", "ULT", "ULE", "UGT", "UGE")),
        *("to_index", "cat", "join"),
    }
)


def _without_data(argument: Any) -> Any:
    """Return an argument of a node; where another node computes it, without the data of the program that ran."""
    node = getattr(argument, "node", None)
    return argument if node is None or node.handle is None else node.handle


def _refuse_opaque(node: Node, what: str) -> None:
    """Raise CannotFollow if a node depends on a value that was not recorded."""
    seen: set[int] = set()
    stack = [node]
    while stack:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if one.number < 0:
            raise CannotFollow(f"{what} depends on {one.name}")
        stack.extend(one.inputs())


class Evaluation:
    """Evaluates nodes for several programs. `ids` has one array of program ids for each axis."""

    def __init__(self, ids: Sequence[Array], readable: Callable[[Array, int], Array]) -> None:
        self._ids = ids
        self._readable = readable
        self._known: dict[Node, Array] = {}

    def value(self, handle: Any) -> Array:
        """Return a block for all programs, with one row for each; a constant has a single row."""
        node = getattr(handle, "node", None)
        if node is None:
            return np.asarray(handle.data)[None]
        _refuse_opaque(node, "an address")
        for one in self._needed(node):
            self._known[one] = self._evaluate(one)
        return self._known[node]

    def _needed(self, node: Node) -> list[Node]:
        found: dict[Node, None] = {}
        stack = [node]
        while stack:
            one = stack.pop()
            if one not in found and one not in self._known:
                found[one] = None
                stack.extend(one.inputs())
        return sorted(found, key=lambda one: one.number)

    def _evaluate(self, node: Node) -> Array:
        if node.name == "get_program_id":
            return self._ids[node.axis][:, None].astype(np.int32)
        rows = [self._row(argument) for argument in node.arguments]
        shape = node.handle.data.shape
        first = rows[0]
        match node.name:
            case "splat":
                value = rows[1].reshape(len(rows[1]), *[1] * len(shape))
                return np.broadcast_to(value, (len(value), *shape))
            case "expand_dims":
                axis = node.arguments[1]
                return np.expand_dims(first, axis + 1 if axis >= 0 else axis)
            case "broadcast":
                return np.broadcast_to(first, (len(first), *shape))
            case "reshape":
                return np.ascontiguousarray(first).reshape(len(first), *shape)
            case "trans":
                return np.transpose(first, (0, *(axis + 1 for axis in node.arguments[1])))
            case "cat":
                count = max(map(len, rows[:2]))
                return np.concatenate([np.broadcast_to(one, (count, *one.shape[1:])) for one in rows[:2]], axis=1)
            case "load":
                return self._load(node, rows[0], rows[1])
        assert node.function is not None
        handles = [
            TensorHandle(row, argument.dtype) if isinstance(argument, TensorHandle) else argument
            for row, argument in zip(rows, node.arguments, strict=True)
        ]
        return np.asarray(node.function(*handles).data)

    def _row(self, argument: Any) -> Any:
        if not isinstance(argument, TensorHandle):
            return argument
        node = getattr(argument, "node", None)
        return np.asarray(argument.data)[None] if node is None else self._known[node]

    def _load(self, node: Node, pointers: Array, mask: Array | None) -> Array:
        addresses, lanes = np.broadcast_arrays(pointers, True if mask is None else mask)
        dtype = numpy_dtype(node.arguments[0].get_element_ty())
        lanes = lanes & self._readable(addresses, dtype.itemsize)
        filler = np.zeros(addresses.shape, dtype)
        loaded: Array = _interpreter.load(np.ascontiguousarray(addresses), np.ascontiguousarray(lanes), filler, dtype)
        return loaded


def _load(*unused: Any) -> None:
    """Mark a node that loads."""


def same_path(record: PathRecorder, programs: NDArray[np.int64], grid: Program) -> NDArray[np.bool_]:
    """Return which programs take the same branches as the recorded one."""
    same = np.ones(programs.size, dtype=bool)
    evaluation = record.evaluation(programs, grid)
    for handle, value in record.branches:
        found = evaluation.value(handle).reshape(-1)
        same &= (found.astype(bool) == value) if isinstance(value, bool) else (found == value)
    return same


def ids_of(programs: NDArray[np.int64], grid: Program) -> tuple[Array, Array, Array]:
    """Return the ids of programs along each axis of the grid."""
    return programs % grid[0], programs // grid[0] % grid[1], programs // (grid[0] * grid[1])


def program_of(number: int, grid: Program) -> Program:
    """Return the ids of the program with this number."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
