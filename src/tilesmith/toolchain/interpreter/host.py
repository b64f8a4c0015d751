"""Copies of a launch's tensors in host memory, where numpy can access them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper

from tilesmith.toolchain.gluon import DESCRIPTORS


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return an argument of a launch with each of its tensors changed, also inside tuples and descriptors."""
    if isinstance(value, tuple):
        elements = [with_tensors(element, change) for element in value]
        return type(value)(*elements) if hasattr(value, "_fields") else tuple(elements)
    if isinstance(value, DESCRIPTORS):
        descriptor = copy.copy(value)
        descriptor.base = with_tensors(value.base, change)
        return descriptor
    if isinstance(value, TensorWrapper):
        return TensorWrapper(with_tensors(value.base, change), value.dtype)
    return change(value) if isinstance(value, torch.Tensor) else value


class HostCopies:
    """Host copies of a launch's tensors. Storages are copied, so that views of one storage still share memory."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def hosted(self, value: Any) -> Any:
        """Return the argument in host memory, without a copy where it is there already."""
        return with_tensors(value, lambda tensor: tensor if tensor.device.type == "cpu" else self._copy(tensor))

    def write_back(self) -> None:
        """Copy what the kernel wrote to the original tensors."""
        for original, host in self._copies.values():
            original.copy_(host)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._copies:
            content = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies[storage.data_ptr()] = (content, content.cpu())
        host = self._copies[storage.data_ptr()][1].untyped_storage()
        return torch.empty(0, dtype=tensor.dtype).set_(host, tensor.storage_offset(), tensor.shape, tensor.stride())
