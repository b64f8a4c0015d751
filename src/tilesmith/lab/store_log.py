"""Remember every store of interpreted kernels, to find the program that stored an element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
        self._accesses: list[Access] = []
        self._spans = np.empty((0, 2), dtype=np.uint64)

    def store(self, access: Access) -> None:
        self._accesses.append(access)

    def atomic(self, access: Access) -> None:
        self._accesses.append(access)

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
        elements = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
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
