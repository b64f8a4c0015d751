"""An arena: memory that the judge and one child share, as plain bytes at offsets that the judge chooses."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 256  # bytes; as GPU allocations have


class Arena:
    """Shared memory. The child gets the descriptor; neither side can shrink the memory under the other."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self.memory = mmap.mmap(descriptor, size)

    @classmethod
    def new(cls, size: int) -> Arena:
        size = max(size, mmap.PAGESIZE)
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("tilesmith", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
            os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    def bytes_at(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Return a view of the memory. Raises ValueError outside of it."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError(f"bytes {offset} to {offset + length} of an arena of {self.size}")
        return np.frombuffer(self.memory, dtype=np.uint8, count=length, offset=offset)

    def storage_at(self, offset: int, length: int) -> torch.Tensor:
        """Return the bytes as a tensor whose storage is exactly these bytes."""
        if length == 0:
            return torch.empty(0, dtype=torch.uint8)
        if offset < 0 or offset + length > self.size:
            raise ValueError(f"bytes {offset} to {offset + length} of an arena of {self.size}")
        return torch.frombuffer(self.memory, dtype=torch.uint8, count=length, offset=offset)

    def close(self) -> None:
        """Close the descriptor. Views keep the memory itself."""
        os.close(self.descriptor)


def aligned(offset: int) -> int:
    """Return the next offset at which a storage may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def view_of(storage: torch.Tensor, dtype: torch.dtype, offset: int, size: Any, stride: Any) -> torch.Tensor:
    """Return the tensor with this dtype, offset, size and stride in a storage of bytes. Raises RuntimeError."""
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(storage.untyped_storage(), offset, tuple(size), tuple(stride))
