"""One program of a launch, recorded with every operation that a store depends on; and the values of its branches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.host import tensors_in
from tilesmith.toolchain.interpreter.observing.observers import Program
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.together.all_programs import (
    EVALUATED,
    Array,
    CannotFollow,
    Evaluation,
    Node,
    PathRecorder,
    ids_of,
)

MOST_STEPS = 50_000  # of one program

# Which argument is the pointer, and the kind of access.
_ACCESSES = {
    "load": (0, "load"),
    "masked_load": (0, "load"),
    "store": (0, "store"),
    "masked_store": (0, "store"),
    "atomic_rmw": (1, "atomic"),
}
_ELEMENTWISE = frozenset(
    {
        *("approx_divf", "ceil", "clampf", "cos", "erf", "exp", "exp2", "fabs", "fadd", "fdiv", "floor", "fma", "fmul"),
        *("fneg", "fp_ext", "fp_to_fp", "fp_to_si", "fp_to_ui", "fp_trunc", "frem", "fsub", "log", "log2", "rsqrt"),
        *("maximumf", "maxnumf", "minimumf", "minnumf", "precise_divf", "precise_sqrt", "si_to_fp", "sin", "sqrt"),
        *("ui_to_fp", "dot", "dot_scaled"),
        *(f"fcmp{order}{one}" for order in "OU" for one in ("EQ", "GE", "GT", "LE", "LT", "NE")),
    }
)
_CONSTANT = frozenset({"make_range", "get_num_programs"})
_WITHOUT_EFFECT = frozenset({"assume", "barrier"})


@dataclass
class ProgramRecorder(PathRecorder):
    """Records every operation of one program. Nothing is stored."""

    effects: list[Node] = field(default_factory=list)
    stored: list[Any] = field(default_factory=list)  # by effect: pointers, value and mask of the program that ran

    def _follow(self, name: str, function: Callable[..., Any], arguments: Sequence[Any], result: Any) -> None:
        if self._count > MOST_STEPS:
            raise CannotFollow("its programs are long")
        if result is None:
            if name not in _WITHOUT_EFFECT:
                raise CannotFollow(f"the kernel uses {name}")
            return
        results = result if isinstance(result, tuple | list) else [result]
        if name == "split":
            self.lose(arguments, results, name, lambda rows: [rows[0][..., 0], rows[0][..., 1]])
            return
        known = name in EVALUATED or name in _ELEMENTWISE
        derived = any(getattr(argument, "node", None) is not None for argument in arguments)
        for one in results:
            if not isinstance(one, TensorHandle) or name in _CONSTANT or (known and not derived):
                continue
            one.node = self._node(name, function, arguments, handle=one) if known else self._opaque(name)

    def lose(
        self, inputs: Sequence[Any], results: Sequence[Any], name: str, function: Callable[..., Any] | None = None
    ) -> None:
        if function is None:
            super().lose(inputs, results, name)
        elif any(getattr(one, "node", None) is not None for one in inputs):
            whole = self._node("several", function, inputs, handle=inputs[0])
            for number, one in enumerate(results):
                one.node = self._node("one of several", None, (whole.handle,), axis=number, handle=one)

    def _access(self, name: str, function: Callable[..., Any], arguments: Sequence[Any], options: Any) -> Any:
        if name not in _ACCESSES:
            raise CannotFollow(f"the kernel uses {name}")
        place, kind = _ACCESSES[name]
        pointers = arguments[place]
        handles = [one for one in arguments if isinstance(one, TensorHandle)]
        if any(one.data.shape != pointers.data.shape for one in handles) or options:
            raise CannotFollow("an access mixes shapes")
        # The recorded program only finds the path: the values that it loads must exist, not its stores.
        result = self._recorded(name, function, arguments)
        node = self._node(kind, function, arguments, axis=place, handle=pointers)
        node.place = kernel_position(sys._getframe(1))
        if kind != "load":
            self.effects.append(node)
            self.stored.append([np.array(one.data) for one in handles])
        if result is not None:
            node.handle = TensorHandle(np.broadcast_to(np.False_, result.data.shape), result.dtype)
            node.handle.node = result.node = node
        return result

    def _recorded(self, name: str, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        place, kind = _ACCESSES[name]
        pointers = arguments[place]
        if kind == "store":
            return None
        if kind == "atomic":
            value = arguments[2]
            return TensorHandle(np.zeros(pointers.data.shape, value.data.dtype), value.dtype.scalar)
        mask = arguments[1] if name == "masked_load" else None
        if not self.builder.memory.holds(pointers, None if mask is None else np.asarray(mask.data, dtype=bool)):
            raise CannotFollow("an access is out of bounds")
        return function(*arguments)

    def evaluation(self, programs: NDArray[np.int64], grid: Program) -> Evaluation:
        return Branches(ids_of(programs, grid), self.builder.memory.readable)

    def order(self, arguments: Mapping[str, Any]) -> list[Node]:
        """Return the nodes that effects need, in program order. Raises CannotFollow where one is not known."""
        storages = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors_in(arguments)}
        written = {storages.get(_argument(effect)) for effect in self.effects}
        for handle, _ in self.branches:
            for node in _needed([handle.node]):
                source = storages.get(_argument(node)) if node.name == "load" else None
                if node.name == "atomic" or (node.name == "load" and (None in written or source in {None, *written})):
                    raise CannotFollow("a branch depends on memory that the kernel writes")
        return _needed(self.effects)


def _argument(access: Node) -> str:
    return getattr(access.arguments[access.axis].dtype, "argument", "") if access.arguments else ""


def _needed(nodes: Sequence[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            if node.number < 0:
                raise CannotFollow(f"a result depends on {node.name}")
            found[node] = None
            stack.extend(node.inputs())
    return sorted(found, key=lambda one: one.number)


class Branches(Evaluation):
    """Evaluates what branches depend on. Loads outside memory give 0: they are those of another path."""

    def _evaluate(self, node: Node) -> Any:
        match node.name:
            case "load":
                pointers, *rest = (self._row(one) for one in node.arguments)
                masked = len(node.arguments) > 1 and is_mask(node.arguments[1])
                loaded = self._load(node, pointers, rest[0] if masked else None)
                filled = masked and isinstance(node.arguments[2], TensorHandle)
                return np.where(rest[0], loaded, rest[1]) if filled else loaded
            case "several":
                return self._several(node)
            case "one of several":
                value = self._row(node.arguments[0])[node.axis]
                return value.reshape(len(value), *node.handle.data.shape)
            case "join":
                left, right = np.broadcast_arrays(*(self._row(one) for one in node.arguments))
                return np.stack([left, right], axis=-1).reshape(len(left), *node.handle.data.shape)
        return super()._evaluate(node)

    def _several(self, node: Node) -> list[Array]:
        """Return the results of a reduction. Triton's blocks are powers of two, so copies of the first row fill up."""
        rows = [self._row(one) for one in node.arguments]
        count = max(map(len, rows))
        padded = 1 << (count - 1).bit_length()
        places = np.where(np.arange(padded) < count, np.arange(padded), 0)
        blocks = [np.broadcast_to(row, (count, *row.shape[1:]))[places] for row in rows]
        return [one[:count] for one in node.function(blocks)]  # type: ignore[misc]


def is_mask(handle: Any) -> bool:
    return isinstance(handle, TensorHandle) and handle.dtype.scalar.is_int1()
