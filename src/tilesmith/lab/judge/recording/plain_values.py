"""Arguments of a task and of PyTorch's operators as JSON, and back. Tensors are references into storages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Reference = list[Any]  # storage number, dtype, offset, size, stride

_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_FORMATS = {
    str(one).removeprefix("torch."): one
    for one in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}


class NotPlain(Exception):
    """A value that has no form in JSON."""


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: Any) -> torch.dtype:
    if name not in _DTYPES:
        raise NotPlain(f"dtype {name!r}")
    return _DTYPES[name]


def encode(value: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
    """Return a value as JSON. Raises NotPlain."""
    if isinstance(value, torch.Tensor):
        return {"tensor": tensor(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.memory_format):
        return {"format": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device | torch.layout):
        return None  # everything is strided, in one memory
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [encode(one, tensor) for one in value]}
    if isinstance(value, dict):
        return {"dict": {str(key): encode(one, tensor) for key, one in value.items()}}
    raise NotPlain(type(value).__name__)


def decode(value: Any, tensor: Callable[[Any], torch.Tensor]) -> Any:
    """Return the value that `encode` wrote. Raises NotPlain."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensor(content)
        if kind == "dtype":
            return dtype_named(content)
        if kind == "format" and content in _FORMATS:
            return _FORMATS[content]
        if kind in ("list", "tuple") and isinstance(content, list):
            made = [decode(one, tensor) for one in content]
            return made if kind == "list" else tuple(made)
        if kind == "dict" and isinstance(content, dict):
            return {name: decode(one, tensor) for name, one in content.items()}
    raise NotPlain(f"{type(value).__name__} in place of a value")
