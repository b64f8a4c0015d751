"""Numbers of one program: where infinities and NaN are born, and where its error beside float64 arises.

Each operation is also performed in float64, on what its inputs would be without rounding. The error of a block is its
largest deviation, divided by the largest exact number of the block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.numerics import is_narrow, widen
from tilesmith.toolchain.interpreter.observing.observers import Birth, Observer, Rounding
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.program import ProgramBuilder

Array = NDArray[Any]

EPSILON = {"fp64": 2.0**-52, "fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}
_CASTS = ("fp_trunc", "fp_to_fp", "fp_ext")
_WHOLE_BLOCK = ("reduce", "scan", "dot", "dot_scaled")
_STORES = {"store": None, "masked_store": 2, "descriptor_store": None}
_MOVES = ("broadcast", "splat", "unsplat", "expand_dims", "reshape", "trans", "cat", "join", "split", "gather")
_READS = ("load", "masked_load", "descriptor_load", "descriptor_gather", "atomic_rmw", "atomic_cas", "atomic_load")
_NOT_ARITHMETIC = (*_MOVES, *_READS, "atomic_poll", "bitcast", "select", "si_to_fp", "ui_to_fp")


class Numbers:
    """Follows the floating-point numbers of one program; `exact` also computes them in float64."""

    def __init__(self, builder: ProgramBuilder, observers: Sequence[Observer]) -> None:
        self._builder = builder
        self._observers = observers
        self._exact = any(observer.measures_precision for observer in observers)
        self._loads_finite = True

    def note(
        self, name: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any], results: Any
    ) -> None:
        """Follow one operation that was performed. Operations inside it must not be followed."""
        inputs = [one for one in _flat(arguments) if _is_float(one)]
        if name in _STORES:
            self._stored(name, arguments)
            return
        floats = [one for one in results if _is_float(one)]
        if not floats:
            return
        if "load" in name:
            self._loaded(name, arguments, floats[0])
        elif inputs:
            self._births(name, inputs, floats)
            if self._exact:
                self._shadow(name, function, arguments, options, inputs, floats)

    def _loaded(self, name: str, arguments: Sequence[Any], result: Any) -> None:
        finite = np.isfinite(numbers_of(result))
        if not finite.all():
            mask = np.asarray(arguments[1].data if name == "masked_load" else True, dtype=bool)
            self._loads_finite = self._loads_finite and bool(np.all(finite | ~mask))
            if np.any(np.isnan(numbers_of(result)) & ~mask):
                result.birth = Birth("NaN", "other", self._builder.grid_idx, *kernel_position(sys._getframe(3)))

    def _births(self, name: str, inputs: list[Any], results: list[Any]) -> None:
        before = next((one.birth for one in inputs if hasattr(one, "birth")), None)
        for result in results:
            values = numbers_of(result)
            finite = np.isfinite(values)
            if finite.all():
                continue
            birth = before
            if birth is None and name not in _NOT_ARITHMETIC:
                value = _born(name, values, [numbers_of(one) for one in inputs])
                if value:
                    birth = Birth(value, name, self._builder.grid_idx, *kernel_position(sys._getframe(3)))
            if birth is not None:
                result.birth = birth

    def _stored(self, name: str, arguments: Sequence[Any]) -> None:
        value, place = arguments[1], _STORES[name]
        if not _is_float(value):
            return
        file, line = kernel_position(sys._getframe(3))
        birth = getattr(value, "birth", None)
        if birth is not None and self._loads_finite:
            mask = np.True_ if place is None else np.asarray(arguments[place].data, dtype=bool)
            if np.any(~np.isfinite(numbers_of(value)) & mask):
                for observer in self._observers:
                    observer.not_finite(Birth(**{**vars(birth), "stored_at": line}))
        if self._exact:
            self._show(value, file, line, 0.0, getattr(arguments[0], "dtype", None))

    def _shadow(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        options: dict[str, Any],
        inputs: list[Any],
        results: list[Any],
    ) -> None:
        if name in _CASTS:
            results[0].exact = exact_of(inputs[0])
        elif name == "bitcast":
            return
        else:
            memory = self._builder.memory
            observers, memory.observers = memory.observers, ()
            try:
                made = function(*(_in_double(one) for one in arguments), **options)
            except Exception:  # an operation that float64 does not have: its result counts as exact
                return
            finally:
                memory.observers = observers
            for result, exact in zip(results, (one for one in _flat((made,)) if _is_float(one)), strict=False):
                result.exact = np.asarray(exact.data, dtype=np.float64)
        before = max(error_of(one) for one in inputs)
        file, line = kernel_position(sys._getframe(3))
        for result in results:
            self._show(result, file, line, before)

    def _show(self, result: Any, file: str, line: int, before: float, pointer: Any = None) -> None:
        error = error_of(result)
        stored = None if pointer is None else getattr(pointer, "argument", "") or ""
        if error == 0.0 and stored is None:
            return
        rounding = Rounding(
            self._builder.grid_idx, file, line, result.dtype.scalar.name, error, max(0.0, error - before), stored
        )
        for observer in self._observers:
            observer.rounding(rounding)


def numbers_of(handle: Any) -> Array:
    """Return the numbers of a block of floats."""
    name = handle.dtype.scalar.name
    data: Array = np.asarray(handle.data)
    return widen(data, name) if is_narrow(name) else data


def exact_of(handle: Any) -> NDArray[np.float64]:
    """Return what a block would hold without rounding; where that is unknown, what it holds."""
    exact: NDArray[np.float64] | None = getattr(handle, "exact", None)
    return numbers_of(handle).astype(np.float64) if exact is None else exact


def error_of(handle: Any) -> float:
    """Return the largest deviation of a block from its exact numbers, divided by the largest of these."""
    known: float | None = getattr(handle, "error", None)
    if known is None:
        known = 0.0 if getattr(handle, "exact", None) is None else _error(numbers_of(handle), handle.exact)
        handle.error = known
    return known


def _error(values: Array, exact: Array) -> float:
    if values.shape != exact.shape:
        return 0.0
    finite = np.isfinite(values) & np.isfinite(exact)
    largest = float(np.max(np.abs(exact), where=finite, initial=0.0))
    if largest == 0.0:
        return 0.0
    return float(np.max(np.abs(values - exact), where=finite, initial=0.0)) / largest


def _born(name: str, values: Array, inputs: list[Array]) -> str:
    """Return which value an operation makes of finite numbers: "infinity", "NaN" or nothing."""
    if name in _WHOLE_BLOCK:
        had_nan, all_finite = (
            np.asarray(any(np.isnan(one).any() for one in inputs)),
            np.asarray(all(np.isfinite(one).all() for one in inputs)),
        )
    else:
        had_nan = np.logical_or.reduce(np.broadcast_arrays(*(np.isnan(one) for one in inputs)))
        all_finite = np.logical_and.reduce(np.broadcast_arrays(*(np.isfinite(one) for one in inputs)))
    if np.any(np.isnan(values) & ~had_nan):
        return "NaN"
    return "infinity" if np.any(np.isinf(values) & all_finite) else ""


def _in_double(value: Any) -> Any:
    if _is_float(value):
        return TensorHandle(exact_of(value), tl.float64)
    if isinstance(value, list):
        return [_in_double(one) for one in value]
    return value


def _flat(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += _flat(value) if isinstance(value, list | tuple) else [value]
    return found


def _is_float(value: Any) -> bool:
    return isinstance(value, TensorHandle) and value.dtype.scalar.name in EPSILON
