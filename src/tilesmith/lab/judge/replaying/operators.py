"""PyTorch's operators by what they do: fill memory, move data, or compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

import torch

from tilesmith.lab.judge.recording.plain_values import NotPlain, dtype_named

Kind = Literal["fill", "move", "compute"]

_FILLS = frozenset(
    {
        *(
            "zeros",
            "zeros_like",
            "new_zeros",
            "zero_",
            "ones",
            "ones_like",
            "new_ones",
            "full",
            "full_like",
            "new_full",
        ),
        *("fill_", "scalar_tensor", "arange", "eye", "zero", "fill"),
    }
)
_MOVES = frozenset(
    {
        *("copy_", "clone", "_to_copy", "contiguous", "cat", "stack", "constant_pad_nd", "repeat", "lift_fresh_copy"),
        *("view_copy", "expand_copy", "permute_copy", "slice_copy", "transpose_copy", "_reshape_copy"),
        *("slice_backward", "select_backward"),
    }
)
# Autograd adds the gradients of a tensor that is used twice.
_OF_AUTOGRAD = frozenset({"add", "add_"})
_NEVER = frozenset({"from_file", "_cudnn_init_dropout_state"})


def kind_of(step: Mapping[str, Any]) -> Kind:
    """Return what the operator of a step, such as "aten::cat" or "aten::add.Tensor", does.

    The judge marks sums of autograd, and steps whose operands depend on no input: these make tables.
    """
    plain = str(step["operator"]).removeprefix("aten::").split(".")[0]
    if plain in _FILLS:
        return "fill"
    if plain in _MOVES:
        return "move"
    return "move" if step.get("accumulates") else "fill" if step.get("independent") else "compute"


def accumulates(step: Mapping[str, Any], storages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a step can be autograd's sum of two gradients of a tensor: both whole, at no line of the file."""
    plain = str(step.get("operator")).removeprefix("aten::").split(".")[0]
    arguments = step.get("args", ())
    if plain not in _OF_AUTOGRAD or len(arguments) != 2 or step.get("kwargs") or step.get("line"):
        return False
    return all(_is_whole(one, storages) for one in arguments)


def _is_whole(value: Any, storages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an encoded tensor has all elements of its storage."""
    try:
        number, dtype, _, size, _ = value["tensor"]
        return bool(prod(size) * dtype_named(dtype).itemsize == storages[number]["bytes"])
    except (TypeError, ValueError, KeyError, IndexError, NotPlain):
        return False


def operator_named(name: Any) -> Any:
    """Return PyTorch's own operator. Raises LookupError for any other."""
    if not isinstance(name, str) or not name.startswith("aten::"):
        raise LookupError(f"{str(name)[:60]} is no operator of PyTorch")
    plain, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, plain, None) if plain.isidentifier() and plain not in _NEVER else None
    found = getattr(packet, overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise LookupError(f"{name[:60]} is no operator of PyTorch")
    return found
