"""Checks of an operator's arguments. An error names the argument, its value, and what it must be."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MASKS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *FLOATING)
_KNOWN = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATING)


def require_floating(operator: str, **tensors: Tensor) -> None:
    """Require dense floating-point tensors."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{operator}: {name} is a {type(tensor).__name__}, but must be a tensor")
        if tensor.layout is not torch.strided:
            raise TypeError(f"{operator}: {name} has layout {dtype_name(tensor.layout)}, but must be a dense tensor")
        if tensor.dtype not in FLOATING:
            raise TypeError(f"{operator}: {name} has dtype {dtype_name(tensor.dtype)}, but must be one of {_KNOWN}")


def require_same_device(operator: str, **tensors: Tensor | None) -> None:
    """Require that all given tensors are on one device."""
    placed = [(name, tensor.device) for name, tensor in tensors.items() if tensor is not None]
    for name, device in placed[1:]:
        if device != placed[0][1]:
            raise ValueError(
                f"{operator}: {name} is on {device}, but {placed[0][0]} is on {placed[0][1]}; they must share a device"
            )


def require_dimensions(operator: str, name: str, tensor: Tensor, at_least: int) -> None:
    if tensor.ndim < at_least:
        raise ValueError(
            f"{operator}: {name} has {tensor.ndim} dimensions (shape {tuple(tensor.shape)}), "
            f"but must have at least {at_least}"
        )


def require_vector(operator: str, name: str, vector: Tensor | None, length: int, of: str) -> None:
    """Require a vector with one element for each column of the tensor named `of`, or None."""
    if vector is None:
        return
    if vector.ndim != 1:
        raise ValueError(
            f"{operator}: {name} has shape {tuple(vector.shape)}, but must be a vector of {length} elements"
        )
    if vector.shape[0] != length:
        raise ValueError(f"{operator}: {name} has {vector.shape[0]} elements, but {of} has {length} columns")


def require_number(operator: str, name: str, value: object, *, at_least: float) -> None:
    if not _real(operator, name, value) >= at_least:
        raise ValueError(f"{operator}: {name} is {value}, but must be at least {at_least:g}")


def require_positive(operator: str, name: str, value: object) -> None:
    """Require a finite number above 0."""
    if not 0 < _real(operator, name, value) < float("inf"):
        raise ValueError(f"{operator}: {name} is {value}, but must be positive and finite")


def _real(operator: str, name: str, value: object) -> float | torch.SymFloat | torch.SymInt:
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat, torch.SymInt)):
        raise TypeError(f"{operator}: {name} is a {type(value).__name__}, but must be a number")
    return value


def require_mask(
    operator: str, mask: Tensor | None, wanted: tuple[int, ...], what: str, takes_numbers: bool = False
) -> None:  # fmt: skip
    """Require a boolean tensor of the shape `wanted`, or None; with `takes_numbers` also one of another dtype.

    `what` names the dimensions in the error.
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"{operator}: mask is a {type(mask).__name__}, but must be a tensor")
    if mask.dtype != torch.bool and not (takes_numbers and mask.dtype in MASKS):
        kinds = "bool or real numbers" if takes_numbers else "bool"
        raise TypeError(
            f"{operator}: mask has dtype {dtype_name(mask.dtype)}, but must be {kinds}: true where there is a residue"
        )
    if tuple(mask.shape) != wanted:
        raise ValueError(f"{operator}: mask has shape {tuple(mask.shape)}, but must be {what}, here {wanted}")


def require_flag(operator: str, name: str, value: object) -> None:
    """Raise a TypeError unless the value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{operator}: {name} is a {type(value).__name__}, but must be True or False")


def require_chunk(operator: str, chunk: object) -> None:
    if chunk is None:
        return
    if isinstance(chunk, bool) or not isinstance(chunk, (int, torch.SymInt)):
        raise TypeError(f"{operator}: chunk is a {type(chunk).__name__}, but must be a whole number or None")
    if chunk < 1:
        raise ValueError(f"{operator}: chunk is {chunk}, but must be at least 1")


def require_same_dtype(operator: str, name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    if tensor.dtype != other.dtype:
        raise TypeError(
            f"{operator}: {name} has dtype {dtype_name(tensor)}, but {other_name} has {dtype_name(other)}; "
            "they must be the same"
        )


def dtype_name(value: object) -> str:
    """Return the short name of a tensor's dtype, or of a dtype: "bfloat16"."""
    return str(value.dtype if isinstance(value, torch.Tensor) else value).removeprefix("torch.")
