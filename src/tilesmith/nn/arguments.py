"""Checks of a module's arguments: an error names the module, the argument, and what the argument must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.arguments import FLAG, Rule, is_number, is_whole, number, one_of, whole
from tilesmith.arguments import checked as checked_by
from tilesmith.ops.runtime.arguments import dtype_name, require_floating

LARGEST_SIZE = 2**31 - 1


def require_input(module: str, name: str, x: Tensor, **ending: int | tuple[int, ...]) -> None:
    """Require a dense floating-point tensor whose shape ends in the sizes given, by the name they have in errors."""
    if isinstance(x, Tensor) and x.is_nested:
        raise TypeError(f"{module}: {name} is a nested tensor, but must be a dense tensor")
    require_floating(module, **{name: x})
    for called, size in ending.items():
        wanted = (size,) if isinstance(size, int) else tuple(size)
        if tuple(x.shape[-len(wanted) :]) != wanted:
            raise ValueError(f"{module}: {name} has shape {tuple(x.shape)}, but must end in {called} {size}")


def require_input_of(layer: torch.nn.Module, module: str, name: str, x: Tensor) -> None:
    """Require a tensor that a linear layer takes. Where users have put another layer in its place, ask for less."""
    width, weight = getattr(layer, "in_features", None), getattr(layer, "weight", None)
    require_input(module, name, x, **({} if width is None else {"size": width}))
    if not isinstance(weight, Tensor):
        return
    if x.device != weight.device:
        raise ValueError(f"{module}: {name} is on {x.device}, but the parameters are on {weight.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"{module}: {name} has dtype {dtype_name(x)}, but the parameters have {dtype_name(weight)}; "
            "they must be the same"
        )


def _is_shape(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and all(map(SIZE_OR_ZERO[0], value))
    return SIZE_OR_ZERO[0](value)


def _sides(allows: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def both(value: Any) -> bool:
        return len(value) in (1, 2) and all(map(allows, value)) if isinstance(value, (list, tuple)) else allows(value)

    return both


def _is_padding(value: Any) -> bool:
    return value in ("valid", "same") if isinstance(value, str) else _sides(SIZE_OR_ZERO[0])(value)


def _is_window(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(is_whole(one) and one >= -1 for one in value)


def _is_device(value: Any) -> bool:
    if isinstance(value, (bool, Tensor)) or (isinstance(value, int) and not 0 <= value < 128):  # an index has 8 bits
        return False
    try:
        torch.device(value)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return False
    return True


SIZE = whole(1, LARGEST_SIZE)
SIZE_OR_ZERO = whole(0, LARGEST_SIZE)  # PyTorch's own modules take no features and no channels too
SHARE = number(0, 1)
POSITIVE: Rule = (lambda value: is_number(value) and value > 0, "a number above 0")

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "channels", "pair_channels", "heads", "head_size",
         "msa_channels", "msa_heads", "pair_heads", "outer_channels", "triangle_channels", "transition_factor",
         "factor", "dim", "hidden_dim", "num_classes", "hidden_channels", "groups"),
        SIZE,
    ),
    **dict.fromkeys(("in_features", "out_features", "in_channels", "out_channels"), SIZE_OR_ZERO),
    **dict.fromkeys(
        ("elementwise_affine", "bias", "causal", "ceil_mode", "count_include_pad", "packed", "return_indices",
         "interleaved", "starting", "outgoing", "inplace"),
        FLAG,
    ),
    **dict.fromkeys(("dropout", "msa_dropout", "pair_dropout", "label_smoothing"), SHARE),
    "rotary_dim": (lambda value: SIZE[0](value) and value % 2 == 0, "even and at least 2"),
    "eps": number(0),
    "softcap": number(0),
    "base": POSITIVE,
    "rope_base": POSITIVE,
    "normalized_shape": (_is_shape, "a size, or a list of sizes"),
    **dict.fromkeys(("kernel_size", "stride", "dilation"), (_sides(SIZE[0]), "one or two whole numbers above 0")),
    "padding": (_is_padding, "one or two whole numbers of at least 0"),
    "divisor_override": (lambda value: is_whole(value) and value != 0, "a whole number other than 0"),
    "ignore_index": (is_whole, "a whole number"),
    "window": (_is_window, "two whole numbers, each −1 or more"),
    "reduction": one_of("none", "mean", "sum"),
    "approximate": one_of("none", "tanh"),
    "device": (_is_device, "a device that PyTorch knows here"),
    "dtype": (lambda value: isinstance(value, torch.dtype) and value.is_floating_point, "a floating-point dtype"),
}  # fmt: skip

checked = checked_by(RULES, handed_on=("device", "dtype"))
# For Softmax, `dim` is a dimension and no size.
checked_softmax = checked_by({"dim": (is_whole, "a whole number")})
