"""Hints that a kernel gives the compiler, checked on the values of the running program.

The compiler believes `tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy` and `tl.assume`. A false one makes loads
and stores too wide, or removes code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray

from tilesmith.toolchain.interpreter.observing.observers import Hint
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.program import ProgramBuilder

Array = NDArray[Any]


class Hints:
    """Replaces the functions of `triton.language` that give hints."""

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder = builder

    def multiple_of(self, input: Any, values: Any) -> Any:
        return self._check("tl.multiple_of", _not_a_multiple, input, values)

    def max_contiguous(self, input: Any, values: Any) -> Any:
        return self._check("tl.max_contiguous", _not_contiguous, input, values)

    def max_constancy(self, input: Any, values: Any) -> Any:
        return self._check("tl.max_constancy", _not_constant, input, values)

    def _check(self, name: str, contradiction: Callable[[Array, int, int, int], str], input: Any, values: Any) -> Any:
        if isinstance(input, tl.tensor) and self._builder.memory.observers:
            data = np.asarray(input.handle.data)
            scalar = input.handle.dtype.scalar
            step = max(1, scalar.element_ty.primitive_bitwidth // 8) if scalar.is_ptr() else 1
            for axis, value in enumerate(_numbers(values)[: data.ndim]):
                reason = contradiction(np.moveaxis(data.astype(np.int64), axis, -1), value, step, axis)
                if reason:
                    self.show(name, reason)
                    input.handle.hint = kernel_position(sys._getframe(1))
                    break
        return input

    def show(self, name: str, reason: str) -> None:
        """Show the observers a false hint."""
        hint = Hint(name, self._builder.grid_idx, *kernel_position(sys._getframe(1)), reason)
        for observer in self._builder.memory.observers:
            observer.false_hint(hint)


def _numbers(values: Any) -> list[int]:
    given: Sequence[Any] = values if isinstance(values, list | tuple | tl.tuple) else [values]
    return [int(getattr(value, "value", value)) for value in given]


def _not_a_multiple(data: Array, divisor: int, step: int, axis: int) -> str:
    """Return the value that starts a contiguous run, in every dimension, and is no multiple; empty if there is none."""
    starts = np.ones(data.shape, dtype=bool)
    for dimension in range(data.ndim):
        after_first = np.moveaxis(starts, dimension, -1)[..., 1:]
        after_first &= np.moveaxis(np.diff(data, axis=dimension), dimension, -1) != step
    wrong = starts & (data % max(1, divisor) != 0)
    return f"{data[wrong][0]} is no multiple of {divisor}" if wrong.any() else ""


def _not_contiguous(data: Array, length: int, step: int, axis: int) -> str:
    return _in_groups(data, length, step, "does not follow", axis)


def _not_constant(data: Array, length: int, step: int, axis: int) -> str:
    return _in_groups(data, length, 0, "differs from", axis)


def _in_groups(data: Array, length: int, difference: int, relation: str, axis: int) -> str:
    """Return the first neighbours inside a group of this length with another difference; empty where none have."""
    wrong = np.diff(data, axis=-1) != difference
    wrong[..., max(1, length) - 1 :: max(1, length)] = False  # between two groups
    if not wrong.any():
        return ""
    *others, place = (int(index) for index in np.argwhere(wrong)[0])
    here, behind = (*others, place), (*others, place + 1)
    one, after = data[here], data[behind]
    return f"{after} at position {place + 1} of dimension {axis} {relation} {one}"


def broken_width(addresses: Array, mask: NDArray[np.bool_], element_bytes: int) -> int | None:
    """Return the fewest elements that cannot be accessed at once; None where 16 bytes always can."""
    for axis in range(addresses.ndim):
        lanes = np.moveaxis(addresses.astype(np.int64), axis, -1)
        active = np.moveaxis(mask, axis, -1)
        length = lanes.shape[-1]
        if not np.any(np.diff(lanes, axis=-1) == element_bytes):
            continue
        width = 2
        while width * element_bytes <= 16 and length % width == 0:
            groups = lanes.reshape(*lanes.shape[:-1], length // width, width)
            used = active.reshape(groups.shape).any(axis=-1)
            whole = (np.diff(groups, axis=-1) == element_bytes).all(axis=-1)
            aligned = groups[..., 0] % (width * element_bytes) == 0
            if np.any(used & ~(whole & aligned)):
                return width
            width *= 2
    return None
