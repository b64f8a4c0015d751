"""PyTorch's operators by what they do: fill memory, move data, or compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

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
    }
)
# Autograd adds the gradients of a tensor that is used twice.
_OF_AUTOGRAD = frozenset({"add", "add_"})
_NEVER = frozenset({"from_file", "_cudnn_init_dropout_state"})


def kind_of(step: Mapping[str, Any]) -> Kind:
    """Return what the operator of a step, such as "aten::cat" or "aten::add.Tensor", does.

    The judge marks steps of a backward, and steps whose operands depend on no input: these make tables.
    """
    plain = str(step["operator"]).removeprefix("aten::").split(".")[0]
    if plain in _FILLS:
        return "fill"
    if plain in _MOVES:
        return "move"
    has_factor = len(step.get("args", ())) != 2 or bool(step.get("kwargs"))
    is_sum = step.get("backward") and plain in _OF_AUTOGRAD and not has_factor
    return "move" if is_sum else "fill" if step.get("independent") else "compute"


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
