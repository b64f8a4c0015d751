"""Memory of an interpreted kernel: bounds of its arguments, observers of its accesses, and out-of-bounds errors."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray

from tilesmith.toolchain.interpreter.host import tensors_in
from tilesmith.toolchain.interpreter.observing.observers import Access, Doubt, Misuse, Observer, OutOfBounds, Program
from tilesmith.toolchain.interpreter.observing.positions import NOWHERE, column_of, kernel_frame

MANY_LANES = 1 << 12  # from there on, numpy indexing beats the loop over lanes (8192: 118 against 184 µs)


class ArgumentPointer(tl.pointer_type):  # type: ignore[misc]  # Triton ships no types
    """A pointer type with the argument that it came from. Block operations pass the type on."""

    def __init__(self, element_type: Any, argument: str) -> None:
        super().__init__(element_type)
        self.argument = argument


@dataclass(frozen=True)
class Region:
    """The memory of one tensor argument: its whole storage, since a view's strides may reach all of it."""

    name: str
    start: int
    end: int
    data: int
    element_bytes: int
    elements: int
    contiguous: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Region:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        return cls(
            name, start, start + storage.nbytes(), tensor.data_ptr(), tensor.element_size(), tensor.numel(),
            contiguous=tensor.is_contiguous(),
        )  # fmt: skip

    def array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the memory as an array."""
        whole: Any = ctypes.c_byte * ((self.end - self.start) // dtype.itemsize * dtype.itemsize)
        return np.frombuffer(whole.from_address(self.start), dtype)

    def contains(self, first: int, last: int) -> bool:
        return self.start <= first and last <= self.end

    def distance(self, address: int) -> int:
        return max(self.start - address, address - self.end + 1, 0)

    def describe(self, address: int) -> str:
        index = (address - self.data) // self.element_bytes
        if self.contiguous:
            count = f"which has {self.elements} element{'' if self.elements == 1 else 's'}"
        else:
            first = (self.start - self.data) // self.element_bytes
            last = (self.end - self.data) // self.element_bytes - 1
            count = f"whose storage holds elements {first} to {last}"
        place = f"{self.name}[{index}]" if self.name else f"element {index} of a tensor that is no argument"
        return f"{place}, {count}"


class Elements(NamedTuple):  # a region as an array, and the elements that an access touches; 0 in lanes that are off
    values: NDArray[Any]
    indices: NDArray[np.intp]


class Memory:
    """The tensors of one launch. Observers see every access; accesses outside these tensors raise an error.

    A pointer must stay in the storage of its own argument; one of unknown origin may access any tensor.
    """

    def __init__(self, kernel: str, arguments: Mapping[str, object], observers: Sequence[Observer]) -> None:
        self.kernel = kernel
        self.observers = observers
        self.regions = {name: Region.of(name, tensor) for name, tensor in tensors_in(arguments)}
        self._others: list[Region] = []
        self.refused: list[OutOfBounds] = []  # accesses of the last program
        self.repeated = 0  # programs that ran again to explain such accesses
        self.doubt: Doubt | None = None  # lanes of the last load that must not decide a result
        self.place: tuple[str, int] | None = None  # file and line of an access that no kernel's frame performs

    @property
    def is_watched(self) -> bool:
        """Whether an observer sees more than what programs write."""
        return any(not observer.only_writes for observer in self.observers)

    def admit(
        self,
        kind: str,
        program: Program,
        pointers: Any,
        mask: NDArray[np.bool_],
        element_bytes: int,
        value: NDArray[Any] | None = None,
        bounded: bool = False,
        masked: bool = False,
        operation: str = "",
    ) -> NDArray[np.bool_]:
        """Return the lanes to perform: the mask without the lanes that are out of bounds."""
        addresses = pointers.data
        active = addresses if mask.all() else addresses[mask]
        own = self.regions.get(getattr(pointers.dtype, "argument", ""))
        within = self._hold(own, active, element_bytes)
        if within and not (self.is_watched if kind == "load" else self.observers):
            return mask
        frame = kernel_frame(sys._getframe(1))
        file, line = self.place or ((frame.f_code.co_filename, frame.f_lineno) if frame else NOWHERE)
        overflow = getattr(pointers, "overflow", None)
        access = Access(
            kind, program, self.kernel, file, line, addresses, mask, element_bytes, value, own.name if own else None,
            column_of(frame), overflow.place if overflow and overflow.lanes[mask].any() else None, bounded, masked,
            operation, getattr(pointers, "hint", None),
        )  # fmt: skip
        self.doubt = None
        for observer in self.observers:
            self.doubt = getattr(observer, kind)(access) or self.doubt
        return mask if within else self._refuse(access, own)

    def misuse(self, program: Program, file: str, line: int, message: str) -> None:
        """Show the observers a wrong use of shared memory; raise it where there are none."""
        misuse = Misuse(message, program, file, line)
        for observer in self.observers or [Observer()]:
            observer.misuse(misuse)

    def holds(self, pointers: Any, mask: NDArray[np.bool_] | None) -> bool:
        """Return whether all lanes of a mask are inside the memory that the pointers may access."""
        own = self.regions.get(getattr(pointers.dtype, "argument", ""))
        active = pointers.data if mask is None or mask.all() else pointers.data[mask]
        return self._hold(own, active, max(1, pointers.get_element_ty().primitive_bitwidth // 8))

    def elements(self, pointers: Any, lanes: NDArray[np.bool_], dtype: np.dtype[Any]) -> Elements | None:
        """Return where an admitted access of many lanes goes; None where the stock loop over lanes must perform it."""
        own = self.regions.get(getattr(pointers.dtype, "argument", ""))
        if own is None or pointers.data.size < MANY_LANES or own.end - own.start < dtype.itemsize:
            return None
        places = np.where(lanes, pointers.data - np.uint64(own.start), np.uint64(0))
        if int(np.bitwise_or.reduce(places, axis=None)) % dtype.itemsize:
            return None
        shift = np.uint64(dtype.itemsize.bit_length() - 1)
        return Elements(own.array(dtype), (places >> shift).view(np.intp))

    def _hold(self, own: Region | None, active: NDArray[np.uint64], element_bytes: int) -> bool:
        if active.size == 0:
            return True
        first, last = int(active.min()), int(active.max()) + element_bytes
        if own is not None:
            return own.contains(first, last)
        if (
            any(region.contains(first, last) for region in self._reachable())
            or self._lanes_inside(active, element_bytes, self._reachable()).all()
        ):
            return True
        self._others = [Region.of("", tensor) for tensor in live_tensors()]
        return bool(self._lanes_inside(active, element_bytes, self._reachable()).all())

    def readable(self, addresses: NDArray[np.uint64], element_bytes: int) -> NDArray[np.bool_]:
        """Return the lanes inside the memory of some argument."""
        return self._lanes_inside(addresses, element_bytes, self.regions.values())

    def _reachable(self) -> list[Region]:
        return [*self.regions.values(), *self._others]

    @staticmethod
    def _lanes_inside(
        addresses: NDArray[np.uint64], element_bytes: int, regions: Iterable[Region]
    ) -> NDArray[np.bool_]:
        inside = np.zeros(addresses.shape, dtype=bool)
        for region in regions:
            if region.end - region.start >= element_bytes:
                inside |= (addresses >= np.uint64(region.start)) & (addresses <= np.uint64(region.end - element_bytes))
        return inside

    def _refuse(self, access: Access, own: Region | None) -> NDArray[np.bool_]:
        inside = self._lanes_inside(access.addresses, access.element_bytes, [own] if own else self._reachable())
        bad = access.mask & ~inside
        error = OutOfBounds(self._message(access, bad, [own] if own else self._reachable()), access, bad)
        self.refused = [*self.refused, error][:8]  # enough to explain
        for observer in self.observers or [Observer()]:
            observer.out_of_bounds(error)
        allowed: NDArray[np.bool_] = access.mask & inside
        return allowed

    def _message(self, access: Access, bad: NDArray[np.bool_], regions: list[Region]) -> str:
        # A negative address has wrapped to the end of the address space.
        address = int(access.addresses[bad].astype(np.int64).flat[0])
        direction = {"load": "load from", "store": "store to", "atomic": "atomic on"}[access.kind]
        nearest = min(regions, key=lambda region: region.distance(address), default=None)
        if nearest is None or access.argument is None:  # the nearest tensor need not be the one that the kernel meant
            near = f"; the nearest is {nearest.describe(address)}" if nearest else ""
            place = f"an address where no tensor lies{near}"
        else:
            place = nearest.describe(address)
        return (
            f"{access.kernel} ({access.file}:{access.line}), program {access.program}: {direction} {place}"
            f" ({np.count_nonzero(bad)} of {access.mask.size} lanes out of bounds)"
        )


def live_tensors() -> Iterator[torch.Tensor]:
    """Yield every tensor in host memory: pointers that a kernel loads from a table of addresses may lead to any."""
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter) and each.device.type == "cpu":
            with suppress(RuntimeError):  # sparse and wrapped tensors have no memory of their own
                each.untyped_storage().data_ptr()
                yield each
