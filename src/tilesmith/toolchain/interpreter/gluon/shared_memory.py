"""Shared and tensor memory of one program: numpy arrays, and who accessed them when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.toolchain.interpreter.gluon.order import Actor

Array = NDArray[Any]


class WrongUse(Exception):
    """Shared memory or an mbarrier is used in a way that a GPU does not allow."""


@dataclass(frozen=True)
class Touch:
    """One access to a part of an allocation."""

    first: int
    last: int
    array: Array
    write: bool
    actor: int
    time: int
    description: str


@dataclass
class Allocation:
    """One allocation: the accesses that later ones must be ordered with, and its mbarriers by address.

    `complain` receives what is wrong with an access, in words.
    """

    name: str
    complain: Callable[[str], None]
    start: int  # address
    element_bytes: int
    written: NDArray[np.bool_]  # by element, flat
    touches: list[Touch] = field(default_factory=list)
    barriers: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Buffer:
    """A view of an allocation. `written` has the shape of `data`; None for a view with another dtype."""

    allocation: Allocation
    data: Array
    written: NDArray[np.bool_] | None

    @classmethod
    def new(cls, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], complain: Callable[[str], None]) -> Buffer:
        """Return new memory. Its content is NaN or -1, so that a use of it shows."""
        data = np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
        written = np.zeros(data.size, dtype=bool)
        allocation = Allocation(name, complain, data.__array_interface__["data"][0], dtype.itemsize, written)
        return cls(allocation, data, written.reshape(shape))

    @property
    def address(self) -> int:
        return int(self.data.__array_interface__["data"][0])

    def view(self, change: Callable[[Array], Array]) -> Buffer:
        """Return the part or the order that `change` makes of an array."""
        data = change(self.data)
        if not np.may_share_memory(data, self.data):
            raise WrongUse(f"a view of {self.allocation.name} that is not contiguous cannot be reshaped")
        return Buffer(self.allocation, data, None if self.written is None else change(self.written))

    def reinterpreted(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Buffer:
        """Return the same bytes with another dtype and shape."""
        if not self.data.flags.c_contiguous:
            raise WrongUse(f"a view of {self.allocation.name} that is not contiguous cannot be reinterpreted")
        plain = self.data.reshape(-1).view(np.uint8)
        size = int(np.prod(shape)) * dtype.itemsize
        return Buffer(self.allocation, plain[:size].view(dtype).reshape(shape), None)

    def read(self, actor: Actor, description: str) -> Array:
        """Return a copy of the content."""
        self._touch(actor, False, description)
        if self.written is not None and not self.written.all():
            missing = int(self.written.size - np.count_nonzero(self.written))
            share = f"{missing} of {self.written.size} elements that nothing has written"
            self.allocation.complain(f"{description} of {self.allocation.name} reads {share}")
        copied: Array = self.data.copy()
        return copied

    def write(self, values: Array, actor: Actor, description: str, where: Array | None = None) -> None:
        """Replace the content, or the elements `where` a mask is true."""
        self._touch(actor, True, description)
        lanes: Any = ... if where is None else where
        self.data[lanes] = values if where is None else values[where]
        if self.written is not None:
            self.written[lanes] = True
        else:
            first, last = (
                (place - self.allocation.start) // self.allocation.element_bytes for place in _bounds(self.data)
            )
            self.allocation.written[first:last] = True

    def _touch(self, actor: Actor, write: bool, description: str) -> None:
        first, last = _bounds(self.data)
        new = Touch(first, last, self.data, write, actor.number, actor.time, description)
        kept = []
        for old in self.allocation.touches:
            ordered = actor.knows(old.actor, old.time)
            if not ordered and (old.write or write) and _overlap(old, new):
                self.allocation.complain(f"{description} of {self.allocation.name} does not wait for {old.description}")
                ordered = True  # say it once
            replaced = ordered and (write or not old.write) and (write or old.actor == actor.number)
            if not (replaced and first <= old.first and old.last <= last and self.data.nbytes == last - first):
                kept.append(old)
        self.allocation.touches[:] = [*kept, new]


class Missing:
    """A buffer that does not exist. A kernel may name it where a predicate prevents its use."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise WrongUse(self._reason)


def _bounds(array: Array) -> tuple[int, int]:
    first = int(array.__array_interface__["data"][0])
    reach = sum((length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True))
    return first, first + reach + array.itemsize


def _overlap(old: Touch, new: Touch) -> bool:
    if old.last <= new.first or new.last <= old.first:
        return False
    try:
        return bool(np.shares_memory(old.array, new.array, max_work=10_000))  # type: ignore[arg-type]  # NumPy takes any number
    except np.exceptions.TooHardError:
        return False
