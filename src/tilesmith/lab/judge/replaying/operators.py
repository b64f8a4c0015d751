"""PyTorch's operators by what they do: fill memory, move data, or compute."""

from __future__ import annotations

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


def kind_of(name: str, *, in_backward: bool = False) -> Kind:
    """Return what an operator such as "aten::cat" or "aten::add.Tensor" does."""
    plain = name.removeprefix("aten::").split(".")[0]
    if plain in _FILLS:
        return "fill"
    if plain in _MOVES or (in_backward and plain in _OF_AUTOGRAD):
        return "move"
    return "compute"


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
