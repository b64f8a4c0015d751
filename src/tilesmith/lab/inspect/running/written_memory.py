"""Which bytes of a storage were written: by torch, by traced programs, and by programs that run later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._ops import OpOverload, OpOverloadPacket

from tilesmith.toolchain.interpreter import Access, Observer, OutOfBounds

# Calls that copy each element: the copy of an unwritten element is unwritten.
COPIES = frozenset(
    {
        *("clone", "to", "cpu", "cuda", "contiguous", "reshape", "flatten", "float", "double", "half", "bfloat16"),
        *("int", "long", "type", "type_as", "view"),
    }
)
# Calls that may discard elements that nobody wrote.
DISCARDING = frozenset(
    {
        *("where", "masked_fill", "masked_select", "nan_to_num", "__repr__", "__format__"),
        *("index_select", "gather", "take", "take_along_dim"),
    }
)


def only_reads(function: Any, options: dict[str, Any]) -> bool:
    """Return whether a torch call computes with every element of its inputs, and writes none of them."""
    name = function.__name__
    if isinstance(function, OpOverload | OpOverloadPacket) or "out" in options:
        return False  # a script's own operator may write its inputs
    return not (name.endswith("_") and not name.endswith("__")) and not name.startswith(("__i", "__set"))


def unwritten_elements(tensor: torch.Tensor, written: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each element of a tensor whether nobody wrote it. `written` has one entry per byte of its storage."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    strides = tuple(stride * size for stride in tensor.stride())
    seen = np.lib.stride_tricks.as_strided(written[start:], tuple(tensor.shape), strides, writeable=False)
    return ~seen


class WrittenBytes(Observer):
    """Marks the bytes that programs of a launch store."""

    only_writes = True

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        written: Callable[[torch.Tensor], NDArray[np.bool_] | None],
        out_of_bounds: Callable[[OutOfBounds], None],
    ) -> None:
        self._out_of_bounds = out_of_bounds
        self._refused: dict[tuple[str, int], OutOfBounds] = {}  # by place
        self._storages: dict[int, NDArray[np.bool_]] = {}
        for tensor in tensors:
            marks = written(tensor)
            if marks is not None:
                self._storages[tensor.untyped_storage().data_ptr()] = marks

    def store(self, access: Access) -> None:
        self._mark(access)

    def atomic(self, access: Access) -> None:
        self._mark(access)

    def out_of_bounds(self, error: OutOfBounds) -> None:
        self._refused.setdefault((error.access.file, error.access.line), error)

    def end(self) -> None:
        """Report the accesses out of bounds: whether an address overflowed is known at the end of its program."""
        for error in self._refused.values():
            self._out_of_bounds(error)

    def _mark(self, access: Access) -> None:
        addresses = access.addresses[access.mask].astype(np.int64)
        if not addresses.size:
            return
        for start, marks in self._storages.items():
            places = addresses - start
            inside = places[(places >= 0) & (places <= marks.size - access.element_bytes)]
            for byte in range(access.element_bytes if inside.size else 0):
                marks[inside + byte] = True


def makes_view(index: Any) -> bool:
    """Return whether indexing makes a view: tensors, lists and arrays select elements and copy them."""
    return all(
        one is None or one is ... or isinstance(one, int | slice)
        for one in (index if isinstance(index, tuple) else (index,))
    )
