"""Every operation of one interpreted program: its kind, its inputs, its line, and 32-bit overflows of addresses.

While an observer follows a program, each method of the builder that creates an operation also records it. Other
programs run at full speed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.memory import Memory
from tilesmith.toolchain.interpreter.observing.observers import Observer, Operation, OutOfBounds, Program
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.program import ProgramBuilder
from tilesmith.toolchain.interpreter.values.precision import Numbers

_KINDS = {
    "load": ("load", "masked_load", "descriptor_load", "descriptor_gather"),
    "store": ("store", "masked_store", "descriptor_store", "descriptor_scatter"),
    "atomic": ("atomic_rmw", "atomic_cas", "atomic_load", "atomic_store", "atomic_poll"),
    "dot": ("dot", "dot_scaled"),
    "reduce": ("reduce",),
    "float": (
        *("fadd", "fsub", "fmul", "fdiv", "precise_divf", "approx_divf", "frem", "fneg", "fabs", "fma"),
        *("minnumf", "maxnumf", "minimumf", "maximumf", "clampf"),
    ),
    "special": (
        *("exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "precise_sqrt", "rsqrt", "erf", "floor", "ceil"),
        "extern_elementwise",
    ),
    "integer": (
        *("add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "idiv", "shl", "lshr", "ashr", "and", "or", "xor"),
        *("minsi", "minui", "maxsi", "maxui", "umulhi", "iabs", "select", "histogram"),
    ),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_ALWAYS_SHOWN = ("load", "store", "atomic", "dot", "reduce", "float", "special")
_NOT_WRAPPED = ("create_barrier", "create_print", "create_assert", "create_assume")
_EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "shl": lambda number, by: np.where(by < 32, number << np.minimum(by, 31), 0),
}
_CONVERSIONS = ("int_cast", "trunc")
_NOWHERE = np.zeros(1, dtype=bool)
MOST_REPEATED = 8  # programs of a launch


class Overflow(NamedTuple):
    """Where 32-bit arithmetic on an address overflowed, and the lanes of a block that follow from it."""

    place: tuple[str, int]
    lanes: NDArray[np.bool_]


@contextmanager
def following(
    builder: ProgramBuilder, observers: Sequence[Observer], run: Callable[[], Any] | Literal[False]
) -> Iterator[None]:
    """Show the observers each operation that the builder performs, inside the context. `run` repeats the program.

    Without observers, a program with an access out of bounds runs again to tell whether its address overflowed.
    """
    memory = builder.memory
    memory.refused.clear()
    if not observers:
        try:
            yield
        finally:
            if run and memory.refused and memory.repeated < MOST_REPEATED:
                memory.repeated += 1
                find_overflows(builder, run)
        return
    with _recording(builder, observers):
        yield


def find_overflows(builder: ProgramBuilder, run: Callable[[], Any]) -> None:
    """Set `overflow` of the accesses that were out of bounds: run their programs again, followed, without effect."""
    memory = builder.memory
    try:
        for program in {error.access.program for error in memory.refused}:
            builder.grid_idx = program
            builder.memory = _Repeated(memory, program)
            with suppress(Exception), _recording(builder, []):
                run()
    finally:
        builder.memory = memory


class _Explained(Exception):
    pass


class _Repeated(Memory):
    """The memory of a program that runs again: nothing is stored."""

    def __init__(self, memory: Memory, program: Program) -> None:
        super().__init__(memory.kernel, {}, [])
        self.regions = memory.regions
        self._unexplained = [error for error in memory.refused if error.access.program == program]

    def admit(
        self, kind: str, program: Program, pointers: Any, mask: NDArray[np.bool_], *facts: Any
    ) -> NDArray[np.bool_]:
        try:
            lanes = super().admit(kind, program, pointers, mask, *facts)
        except OutOfBounds as error:
            lanes = mask & ~error.bad_lanes
            self._explain(error)
        if kind == "atomic" or not self._unexplained:
            raise _Explained  # a program may wait for what its atomic does
        return lanes if kind == "load" else np.zeros_like(mask)

    def _explain(self, found: OutOfBounds) -> None:
        for error in self._unexplained:
            if _where(error) == _where(found):
                error.access = replace(error.access, overflow=found.access.overflow)
                self._unexplained.remove(error)
                return


def _where(error: OutOfBounds) -> tuple[Any, ...]:
    access = error.access
    return access.kind, access.file, access.line, access.argument


@contextmanager
def _recording(builder: ProgramBuilder, observers: Sequence[Observer]) -> Iterator[None]:
    recorder = Recorder(builder, observers)
    names = [name for name in builder.operation_names if name not in _NOT_WRAPPED]
    for name in names:
        setattr(builder, name, partial(recorder.call, name.removeprefix("create_"), getattr(builder, name)))
    builder.recorder = recorder
    try:
        yield
    finally:
        builder.recorder = None
        for name in names:
            delattr(builder, name)


class Recorder:
    """Records the operations of one program."""

    def __init__(self, builder: ProgramBuilder, observers: Sequence[Observer]) -> None:
        self._builder = builder
        self._observers = observers
        self._inside = False
        self._count = 0
        self._numbers = Numbers(builder, observers)

    def call(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Perform an operation and record it, but not the operations inside it."""
        if self._inside:
            return function(*arguments, **options)
        inputs = list(_handles(arguments))
        if _KIND_OF.get(name) == "store":
            # A store may raise an error, and its value is known before.
            self._note(name, inputs, inputs[:1])
        self._inside = True
        try:
            result = function(*arguments, **options)
            self._numbers.note(name, function, arguments, options, list(_handles((result,))))
        finally:
            self._inside = False
        if _KIND_OF.get(name) != "store":
            self._note(name, inputs, list(_handles((result,))))
        return result

    def _note(self, name: str, inputs: list[Any], results: list[Any]) -> None:
        kind = _KIND_OF.get(name)
        origins = sorted({origin for handle in inputs for origin in getattr(handle, "origins", ())})
        overflow = _passed_on(name, inputs, results)
        hint = next((handle.hint for handle in inputs if hasattr(handle, "hint")), None)
        if overflow is None and (lanes := _overflows(name, inputs, results)).any():
            overflow = Overflow(kernel_position(sys._getframe(2)), lanes)
        if kind in _ALWAYS_SHOWN or (kind is not None and origins):
            self._show(kind, name, inputs, results, tuple(origins))
            origins = [self._count - 1]
        for result in results if kind != "store" else ():
            result.origins = origins
            if hint is not None and kind in ("integer", None):
                result.hint = hint
            if overflow is not None and kind in ("integer", None) and result.data.dtype != np.bool_:
                result.overflow = overflow

    def _show(self, kind: str, name: str, inputs: list[Any], results: list[Any], origins: tuple[int, ...]) -> None:
        block = inputs[min(1, len(inputs) - 1)] if kind == "store" or not results else results[0]
        elements = block.data.size
        if kind == "reduce":
            elements = inputs[0].data.size
        elif kind == "dot":
            elements = results[0].data.size * inputs[0].data.shape[-1]
        nan = _nan(inputs, [block] if kind == "store" else results)
        pointer = next((handle.dtype for handle in inputs if hasattr(handle.dtype, "argument")), None)
        operation = Operation(
            self._count, kind, name, self._builder.grid_idx, *kernel_position(sys._getframe(3)),
            shape=tuple(block.data.shape), format=block.dtype.scalar.name, elements=elements,
            inputs=origins, argument=getattr(pointer, "argument", None), nan=nan,
        )  # fmt: skip
        self._count += 1
        for observer in self._observers:
            observer.operation(operation)


def _handles(values: Sequence[Any]) -> Iterator[Any]:
    """Return the blocks among an operation's arguments; for a descriptor, its base."""
    for value in values:
        if isinstance(value, TensorHandle):
            yield value
        elif isinstance(value, list | tuple | tl.tuple):
            yield from _handles(value)
        elif isinstance(getattr(value, "base", None), TensorHandle):
            yield value.base


def _nan(inputs: list[Any], results: list[Any]) -> str:
    if not any(map(_has_nan, results)):
        return ""
    return "passed" if any(map(_has_nan, inputs)) else "made"


def _has_nan(handle: Any) -> bool:
    return handle.data.dtype.kind == "f" and bool(np.isnan(handle.data).any())


def _passed_on(name: str, inputs: list[Any], results: list[Any]) -> Overflow | None:
    """Return where the operands of an operation overflowed, with the lanes of its result that follow from these."""
    found = [handle.overflow for handle in inputs if hasattr(handle, "overflow")]
    if not found or not results:
        return None
    shape = results[0].data.shape
    if name == "select":
        chosen, *sides = inputs
        lanes = np.where(chosen.data, *(one.overflow.lanes if hasattr(one, "overflow") else False for one in sides))
        return Overflow(found[0].place, np.broadcast_to(lanes, shape))
    return Overflow(found[0].place, np.logical_or.reduce([_moved(name, one.lanes, shape) for one in found]))


def _moved(name: str, lanes: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if lanes.size == np.prod(shape) and name != "trans":
        return lanes.reshape(shape)
    try:
        return np.broadcast_to(lanes, shape)
    except ValueError:
        return np.ones(shape, dtype=bool)  # perhaps all of them


def _overflows(name: str, inputs: list[Any], results: list[Any]) -> NDArray[np.bool_]:
    """Return where a 32-bit integer operation overflowed, or a conversion to 32 bits lost digits."""
    if name in _CONVERSIONS and results and results[0].data.dtype == np.int32 and inputs[0].data.dtype == np.int64:
        return np.asarray(inputs[0].data != results[0].data)
    if name not in _EXACT or len(inputs) != 2 or results[0].data.dtype != np.int32:
        return _NOWHERE
    left, right = (handle.data.astype(np.int64) for handle in inputs)
    return np.asarray(_EXACT[name](left, right) != results[0].data)
