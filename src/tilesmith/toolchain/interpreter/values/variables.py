"""The variables of one program, line by line: what a kernel holds in registers and in shared memory.

Python's trace function sees each line of the rewritten kernel, and of the @triton.jit functions that it calls. A step
is one statement that was executed, with the variables that it changed.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray

from tilesmith.toolchain.interpreter.memory import Memory
from tilesmith.toolchain.interpreter.numerics import is_narrow, widen
from tilesmith.toolchain.interpreter.observing.observers import Observer, Step
from tilesmith.toolchain.interpreter.observing.positions import is_user_code
from tilesmith.toolchain.interpreter.program import ProgramBuilder
from tilesmith.toolchain.interpreter.rewriting import is_rewritten
from tilesmith.toolchain.interpreter.values.undefined import undefined_of
from tilesmith.toolchain.variable import UNDEFINED, Variable

ROWS, COLUMNS, IN_A_ROW = 4, 6, 6  # of an excerpt: a tile's first rows and columns; elements of one dimension
_POINTER_BITS = 64


@contextmanager
def stepping(builder: ProgramBuilder, observers: Sequence[Observer]) -> Iterator[None]:
    """Show each statement of the program that runs inside the context to the observers that step through it."""
    steppers = [observer for observer in observers if builder.grid_idx in observer.stepped]
    if not steppers:
        yield
        return
    before = sys.gettrace()
    sys.settrace(_Tracer(builder, steppers).enter)
    try:
        yield
    finally:
        sys.settrace(before)


@dataclass
class _Call:
    """A running function: its current statement, and its variables as they were before it."""

    prefix: str
    function: str
    definition: tuple[int, int]
    statement: tuple[int, int] | None
    known: dict[str, Any] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    shared: dict[str, bytes] = field(default_factory=dict)


class _Tracer:
    """A trace function for `sys.settrace`."""

    def __init__(self, builder: ProgramBuilder, observers: Sequence[Observer]) -> None:
        self._builder = builder
        self._observers = observers
        self._depth = 0
        self._needs_variables = True

    def enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if event != "call" or not is_rewritten(code) or not is_user_code(code.co_filename):
            return None
        first = _statements(code.co_filename).get(code.co_firstlineno, (code.co_firstlineno, code.co_firstlineno))
        call = _Call(f"{code.co_name}." if self._depth else "", code.co_name, first, first)
        self._depth += 1
        return lambda inner, event, argument: self._event(call, inner, event, argument)

    def _event(self, call: _Call, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        statements = _statements(frame.f_code.co_filename)
        if event == "line":
            statement = statements.get(frame.f_lineno, (frame.f_lineno, frame.f_lineno))
            if statement not in (call.statement, call.definition):
                self._finish(call, frame)
                call.statement = statement
        elif event == "exception" and call.statement is not None:
            self._finish(call, frame, raised=argument[0].__name__)
            call.statement = None
        elif event == "return":
            self._depth -= 1
            gone = tuple(sorted(call.prefix + name for name in call.shown)) if call.prefix else ()
            self._finish(call, frame, gone=gone)
        return lambda inner, event, argument: self._event(call, inner, event, argument)

    def _finish(self, call: _Call, frame: FrameType, *, raised: str = "", gone: tuple[str, ...] = ()) -> None:
        """Show the statement that has just ended; the arguments of a function belong to its first statement."""
        if call.statement is None:
            return
        changed: list[Variable] = []
        if self._needs_variables:
            variables = frame.f_locals
            changed = list(self._changed(call, variables))
            call.known = dict(variables)
            call.shown |= {one.name.removeprefix(call.prefix) for one in changed}
        first, last = call.statement
        step = Step(
            self._builder.grid_idx, call.function, frame.f_code.co_filename, first, last, tuple(changed), gone, raised
        )
        answers = [observer.step(step) for observer in self._observers]
        self._needs_variables = any(answer is not False for answer in answers)

    def _changed(self, call: _Call, variables: Mapping[str, Any]) -> Iterator[Variable]:
        for name, value in variables.items():
            if name.startswith("_interpreted_"):
                continue
            is_same = name in call.known and call.known[name] is value
            if is_same and isinstance(value, tl.tensor):
                continue
            for variable, content in _described(call.prefix + name, value, self._builder.memory):
                if content is not None:  # shared memory changes in place
                    if call.shared.get(variable.name) == content:
                        continue
                    call.shared[variable.name] = content
                elif is_same:
                    continue
                yield variable


def _described(name: str, value: Any, memory: Memory) -> Iterator[tuple[Variable, bytes | None]]:
    """Yield the variables of a value, one for each element of a tuple; of shared memory also its content."""
    if isinstance(value, tuple | tl.tuple):
        for number, one in enumerate(value):
            yield from _described(f"{name}[{number}]", one, memory)
        return
    handle: Any = getattr(value, "handle", None)
    if hasattr(handle, "block_shape") and hasattr(handle, "offsets"):  # a block pointer
        offsets = tuple(_text(np.asarray(one.data).item()) for one in handle.offsets)
        kind = f"{getattr(handle.base.dtype.scalar, 'argument', None) or 'pointer'} + block"
        yield Variable(name, "registers", (len(offsets),), kind, _POINTER_BITS, (offsets,), ""), None
    elif isinstance(value, tl.tensor):
        yield _tile(name, handle, memory), None
    elif hasattr(handle, "allocation"):  # of Gluon
        data, written = handle.data, handle.written
        unknown = None if written is None else ~np.asarray(written)
        values = np.asarray(data)
        kind = str(values.dtype)
        excerpt = _excerpt(values, unknown)
        content = values.tobytes() + (b"" if unknown is None else unknown.tobytes())
        yield (
            Variable(name, "shared", values.shape, kind, 8 * values.itemsize, excerpt, _summary(values, unknown)),
            (content),
        )
    elif isinstance(value := getattr(value, "value", value), bool | int | float):
        yield Variable(name, "constant", (), type(value).__name__, 0, ((_text(value),),), ""), None


def _tile(name: str, handle: Any, memory: Memory) -> Variable:
    scalar = handle.dtype.scalar
    undefined = undefined_of(handle)
    unknown = None if undefined is None else np.broadcast_to(undefined.lanes, handle.data.shape)
    if scalar.is_ptr():
        base, offsets = _pointers(handle, memory)
        return Variable(
            name, "registers", _shape(offsets), base, _POINTER_BITS, _excerpt(offsets, None), _summary(offsets, None)
        )
    values = widen(handle.data, scalar.name) if is_narrow(scalar.name) else handle.data
    bits = int(scalar.primitive_bitwidth)
    return Variable(
        name, "registers", _shape(values), scalar.name, bits, _excerpt(values, unknown), _summary(values, unknown)
    )


def _pointers(handle: Any, memory: Memory) -> tuple[str, NDArray[Any]]:
    """Return what pointers point to, and their distances from its first element."""
    argument = getattr(handle.dtype.scalar, "argument", None)
    region = memory.regions.get(argument or "")
    if region is None:
        return "pointer", np.zeros(handle.data.shape, dtype=np.int64)
    distances = (handle.data.astype(np.int64) - region.data) // max(1, region.element_bytes)
    return f"{argument} +", distances


def _shape(values: NDArray[Any]) -> tuple[int, ...]:
    return tuple(values.shape) if values.size > 1 else ()


def _excerpt(values: NDArray[Any], unknown: NDArray[np.bool_] | None) -> tuple[tuple[str, ...], ...]:
    """Return the first elements: of more than two dimensions, those of the first matrix."""
    while values.ndim > 2:
        values, unknown = values[0], None if unknown is None else unknown[0]
    if values.ndim == 0 or values.size == 1:
        values, unknown = values.reshape(1, 1), None if unknown is None else unknown.reshape(1, 1)
    elif values.ndim == 1:
        values, unknown = values[None, :IN_A_ROW], None if unknown is None else unknown[None, :IN_A_ROW]
    else:
        values, unknown = values[:ROWS, :COLUMNS], None if unknown is None else unknown[:ROWS, :COLUMNS]
    return tuple(
        tuple(
            UNDEFINED if unknown is not None and unknown[row, column] else _text(values[row, column].item())
            for column in range(values.shape[1])
        )
        for row in range(values.shape[0])
    )


def _text(value: float | int | bool) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(int(value))


def _summary(values: NDArray[Any], unknown: NDArray[np.bool_] | None) -> str:
    """Return a block in words: how many of a mask are true, the range of numbers, NaN and undefined lanes."""
    if values.size <= 1:
        return ""
    known = values.reshape(-1) if unknown is None else values[~unknown]
    without = [f"{values.size - known.size} undefined"] if known.size < values.size else []
    if not known.size:
        return "all undefined"
    if values.dtype == np.bool_:
        return ", ".join([f"{np.count_nonzero(known)} of {values.size} true", *without])
    if values.dtype.kind == "f":
        nan = int(np.isnan(known).sum())
        without += [f"{nan} NaN"] if nan else []
        known = known[~np.isnan(known)]
        if not known.size:
            return ", ".join(without)
    return ", ".join([f"{_text(known.min().item())} to {_text(known.max().item())}", *without])


@lru_cache(maxsize=64)
def _statements(file: str) -> dict[int, tuple[int, int]]:
    """Return first and last line of the statement at each line of a file; of a compound statement, its header."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    found: dict[int, tuple[int, int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
            for line in range(node.lineno, max(node.lineno, last) + 1):
                known = found.get(line)
                if known is None or node.lineno > known[0]:
                    found[line] = (node.lineno, max(node.lineno, last))
    return found
