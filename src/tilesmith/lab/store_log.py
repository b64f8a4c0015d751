"""Remember every store of interpreted kernels, to say which program stored a wrong element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tilesmith.lab.comparison import Comparison
from tilesmith.toolchain.interpreter import Access, Observer


@dataclass(frozen=True)
class Writer:
    """The program and the source line that stored an element last."""

    kernel: str
    program: tuple[int, int, int]
    file: str
    line: int

    def __str__(self) -> str:
        return f"program {self.program} of {self.kernel}, {Path(self.file).name}:{self.line}"


class StoreLog(Observer):
    """Remembers every store and atomic.

    Memory is reused: a store may have gone to another tensor at the same address. So a store counts only where memory
    still holds its value.
    """

    def __init__(self) -> None:
        self.adds_to_new_memory: Access | None = None  # the first atomic that does; `check` fills new memory
        self._accesses: list[Access] = []
        self._spans = np.empty((0, 2), dtype=np.uint64)
        self._arguments: dict[str, Tensor] = {}
        self._idle: dict[str, tuple[int, int, int]] = {}  # the grids without programs, by kernel

    def launch(self, kernel: Any, grid: tuple[int, int, int], arguments: Mapping[str, object]) -> None:
        if 0 in grid:
            self._idle[kernel.__name__] = grid
        self._arguments = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}

    def store(self, access: Access) -> None:
        self._accesses.append(access)

    def atomic(self, access: Access) -> None:
        if self.adds_to_new_memory is None and access.operation.endswith("add") and self._finds_filling(access):
            self.adds_to_new_memory = access
        self._accesses.append(access)

    def launches_without_programs(self) -> Iterator[str]:
        """Yield a sentence for each kernel with an empty grid."""
        for kernel, grid in self._idle.items():
            yield f"no program of {kernel} ran: its grid is {grid}"

    def cause(self, value: Any, writer: Writer | None) -> str:
        """Return why a wrong value is an atomic's on memory that nobody wrote; nothing where it is not."""
        access = self.adds_to_new_memory
        if access is None or (value == value if writer is None else writer.line != access.line):
            return ""
        memory = access.argument or "memory"
        return (
            f"the atomic of {_writer(access)}, adds to {memory}, which nobody wrote before; initialise that tensor: "
            "torch.zeros instead of torch.empty"
        )

    def _finds_filling(self, access: Access) -> bool:
        """Return whether the memory before an atomic has the filling of new memory, and no kernel wrote it."""
        tensor = self._arguments.get(access.argument or "")
        if tensor is None or tensor.device.type != "cpu":
            return False
        elements, start = _elements(tensor), tensor.untyped_storage().data_ptr()
        places = (access.addresses[access.mask].astype(np.int64) - start) // tensor.itemsize
        places = places[(places >= 0) & (places < elements.numel())]  # an atomic out of bounds is shown before refused
        new = places[_is_filling(elements[torch.from_numpy(places)]).numpy()]
        return bool(new.size) and self.writer_of(elements, (int(new[0]),)) is None

    def writer_of(self, tensor: Tensor, index: Sequence[int]) -> Writer | None:
        """Return who stored this element; None where no kernel did."""
        offset = sum(place * stride for place, stride in zip(index, tensor.stride(), strict=True))
        address = tensor.data_ptr() + offset * tensor.itemsize
        for access in self._latest_between(address, address + 1):
            lanes = _lanes_between(access, address, address + 1)
            if lanes.any():
                found = tensor[tuple(index)].item()
                return _writer(access) if _left(access, lanes, found, tensor.itemsize) else None
        return None

    def wrote_into(self, tensor: Tensor) -> bool:
        """Return whether a kernel stored into this tensor, so that an element without a writer was missed."""
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        elements = _elements(tensor)
        for access in self._latest_between(start, end):
            lanes = _lanes_between(access, start, end)
            if lanes.any():
                place = (int(access.addresses[lanes][0]) - start) // tensor.itemsize
                if _left(access, _only_first(lanes), elements[place].item(), tensor.itemsize):
                    return True
        return False

    def _latest_between(self, start: int, end: int) -> Iterator[Access]:
        """Yield the accesses that may touch these addresses, latest first."""
        if len(self._spans) < len(self._accesses):
            fresh = [_span(access) for access in self._accesses[len(self._spans) :]]
            self._spans = np.concatenate([self._spans, np.array(fresh, dtype=np.uint64)])
        reaching = (self._spans[:, 0] < np.uint64(end)) & (self._spans[:, 1] > np.uint64(start))
        return (self._accesses[number] for number in reversed(np.flatnonzero(reaching)))


def _elements(tensor: Tensor) -> Tensor:
    """Return all elements of a tensor's memory."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def _span(access: Access) -> tuple[int, int]:
    """Return the first byte of an access, and the first byte after it."""
    active = access.addresses[access.mask]
    return (int(active.min()), int(active.max()) + access.element_bytes) if active.size else (0, 0)


def _lanes_between(access: Access, start: int, end: int) -> NDArray[np.bool_]:
    last_bytes = access.addresses + np.uint64(access.element_bytes - 1)
    lanes: NDArray[np.bool_] = access.mask & (access.addresses < np.uint64(end)) & (last_bytes >= np.uint64(start))
    return lanes


def _only_first(lanes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    first = np.zeros_like(lanes)
    first.flat[np.flatnonzero(lanes)[0]] = True
    return first


def _left(access: Access, lanes: NDArray[np.bool_], found: Any, element_bytes: int) -> bool:
    """Return whether the value in memory can come from these lanes."""
    if access.kind == "atomic" or access.value is None or access.element_bytes != element_bytes:
        return True
    stored = np.broadcast_to(access.value, lanes.shape)[lanes]
    return bool(np.any((stored == found) | ((stored != stored) & (found != found))))


def _writer(access: Access) -> Writer:
    return Writer(access.kernel, access.program, access.file, access.line)


def explained(comparison: Comparison, ours: Tensor, exact: Tensor, stores: StoreLog) -> str:
    """Return what is wrong: the first wrong element, who stored it, and how many are wrong."""
    element = _element(comparison, ours, exact, stores)
    if comparison.wrong_elements == 0:
        return (
            f"every element is within its limit, but the norm of the error is {comparison.error:.3g} of the "
            f"reference's norm, allowed {comparison.allowed:.3g}; closest to its limit: {element}"
        )
    if comparison.wrong_elements == 1:
        return element
    worst = ""
    if comparison.worst != comparison.first and comparison.worst_error < float("inf"):
        worst = f", the worst is {list(comparison.worst)}, off by {comparison.worst_error:.2g}"
    return f"{element}; {comparison.wrong_elements} of {ours.numel()} elements are wrong{worst}"


def _element(comparison: Comparison, ours: Tensor, exact: Tensor, stores: StoreLog) -> str:
    index = comparison.first
    got, wanted = ours[index].item(), exact[index].item()
    place = f"element {list(index)}" if index else "the value"
    writer = stores.writer_of(ours, index)
    written_by_kernels = writer is None and stores.wrote_into(ours)
    cause = stores.cause(got, writer)
    if cause:
        return "{} is {}, but must be {}: {}".format(place, *distinct_texts(got, wanted), cause)
    if written_by_kernels and _is_filling(ours[index]):
        return f"{place} was never written; it must be {wanted:g}"
    text = "{} is {}, but must be {}".format(place, *distinct_texts(got, wanted))
    if comparison.first_error < float("inf"):
        text += f" (off by {comparison.first_error:.2g}, allowed {comparison.first_allowed:.2g})"
    if writer is not None:
        return f"{text}; stored by {writer}"
    if written_by_kernels:
        return f"{text}; not stored by a kernel"
    if _is_filling(ours[index]):
        filling = "NaN" if got != got else "this number"
        text += f"; new memory holds {filling}, so it may never have been written"
    return text + "".join(f"; {idle}" for idle in stores.launches_without_programs())


def _is_filling(values: Tensor) -> Tensor:
    """Return which values are the filling of new memory."""
    if values.dtype.is_floating_point or values.dtype == torch.bool:
        return values != values
    return values == torch.iinfo(values.dtype).max


def distinct_texts(one: float, other: float) -> tuple[str, str]:
    """Return two numbers with as many digits as needed to see the difference."""
    pairs = [(f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(6, 18)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
