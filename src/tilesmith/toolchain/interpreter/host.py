"""A launch's arguments: checked as Triton's launcher checks them, and copied to host memory for numpy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import TensorWrapper

from tilesmith.toolchain.gluon import DESCRIPTORS


def require_launchable(kernel: Any, arguments: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raise the error of Triton's launcher for an option that no GPU knows, or an argument that cannot go to a GPU."""
    for name in options:
        if name not in _launch_options():
            raise KeyError(f"Keyword argument {name} was specified but unrecognised")
    for parameter in kernel.params:
        value = arguments[parameter.name]
        if isinstance(value, list | str | dict | np.ndarray) and not parameter.is_constexpr:
            raise TypeError(f"{parameter.name}: failed to specialize argument of type: {type(value).__name__}")


@cache
def _launch_options() -> frozenset[str]:
    """Return the options of a launch on either vendor's GPUs."""
    targets = (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64))
    given = {"enable_fp_fusion": True}  # Triton warns without it
    return frozenset(name for target in targets for name in vars(make_backend(target).parse_options(given)))


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


def tensors_in(arguments: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors among a kernel's arguments, by the name for messages."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (TensorWrapper, *DESCRIPTORS)):
            yield from tensors_in({name: value.base})
        elif isinstance(value, tuple):
            yield from tensors_in({f"{name}[{index}]": element for index, element in enumerate(value)})


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
