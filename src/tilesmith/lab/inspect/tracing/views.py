"""Which elements of a storage belong to a tensor, which may be a view of it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

MOST_MARKED = 1 << 28  # elements of a storage; of a longer one only the two ends of the view are known


class View:
    """The elements of one tensor within its storage."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._start = storage.data_ptr()
        self._size = tensor.element_size()
        self._first = tensor.storage_offset()
        spans = [(length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        self._last = self._first + sum(spans)
        elements = storage.nbytes() // self._size
        dense = tensor.numel() == self._last - self._first + 1 and torch._debug_has_internal_overlap(tensor) == 0
        self.is_whole_storage = tensor.numel() == 0 or (dense and tensor.numel() == elements)
        self._marks: NDArray[np.bool_] | None = None
        if not self.is_whole_storage and not dense and elements <= MOST_MARKED:
            self._marks = np.zeros(elements, dtype=bool)
            strides = tuple(stride for stride in tensor.stride())
            np.lib.stride_tricks.as_strided(self._marks[self._first :], tuple(tensor.shape), strides)[...] = True

    def holds(self, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which addresses are those of elements of the tensor."""
        places = (addresses.astype(np.int64) - self._start) // self._size
        inside: NDArray[np.bool_] = np.logical_and(places >= self._first, places <= self._last)
        if self._marks is not None:
            inside = np.logical_and(inside, self._marks[np.where(inside, places, 0)])
        return inside
