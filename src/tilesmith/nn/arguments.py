"""Checks of a module's arguments: an error names the module, the argument, and what the argument must be."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor

from tilesmith.ops.runtime.arguments import dtype_name, require_floating

MODULE = TypeVar("MODULE", bound=type[torch.nn.Module])
LARGEST_SIZE = 2**31 - 1


def checked(module: MODULE) -> MODULE:
    """Let a module's constructor refuse wrong arguments in one sentence. `RULES` says what each argument must be."""
    construct = module.__init__
    takes = signature(construct)
    parameters = takes.parameters.values()
    required = {one.name for one in parameters if one.default is not None and "None" not in str(one.annotation)}
    # A constructor with `**placed` hands these two on.
    known = {*takes.parameters, "device", "dtype"}

    @wraps(construct)
    def checked_construct(self: torch.nn.Module, *arguments: Any, **named: Any) -> None:
        unknown = [name for name in named if name not in known]
        if unknown:
            raise TypeError(f"{module.__name__}: {unknown[0]} is no argument of the constructor")
        try:
            given = takes.bind(self, *arguments, **named).arguments
        except TypeError as error:
            raise TypeError(f"{module.__name__}: {error}") from None
        for name, value in {**given, **named}.items():
            if name in RULES and (value is not None or name in required):
                _require(module.__name__, name, value)
        construct(self, *arguments, **named)

    module.__init__ = checked_construct  # type: ignore[method-assign]  # the same signature, by `wraps`
    return module


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


def _require(module: str, name: str, value: object) -> None:
    allows, wanted = RULES[name]
    if name == "dim" and module == "Softmax":  # a dimension, not a size
        allows, wanted = _is_whole, "a whole number"
    if allows(value):
        return
    if isinstance(value, (int, float, str)) and len(repr(value)) < 100:
        raise ValueError(f"{module}: {name} is {value!r}, but must be {wanted}")
    raise TypeError(f"{module}: {name} is a {type(value).__name__}, but must be {wanted}")


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, (bool, Tensor)) and -(2**63) <= value < 2**63


def _is_size(value: Any) -> bool:
    return _is_whole(value) and 1 <= value <= LARGEST_SIZE


def _is_size_or_zero(value: Any) -> bool:
    return _is_whole(value) and 0 <= value <= LARGEST_SIZE


def _is_shape(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and all(map(_is_size_or_zero, value))
    return _is_size_or_zero(value)


def _number(at_least: float, at_most: float) -> Callable[[Any], bool]:
    def allows(value: Any) -> bool:
        is_number = hasattr(value, "__float__") and not isinstance(value, (bool, Tensor))
        return is_number and at_least <= float(value) <= at_most

    return allows


def _sides(allows: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def both(value: Any) -> bool:
        return len(value) in (1, 2) and all(map(allows, value)) if isinstance(value, (list, tuple)) else allows(value)

    return both


def _is_padding(value: Any) -> bool:
    return value in ("valid", "same") if isinstance(value, str) else _sides(_is_size_or_zero)(value)


def _is_window(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_whole(one) and one >= -1 for one in value)


def _is_device(value: Any) -> bool:
    try:
        torch.device(value)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, bool)


def _one_of(*words: str) -> Rule:
    return (lambda value: isinstance(value, str) and value in words), f"one of {', '.join(map(repr, words))}"


Rule = tuple[Callable[[Any], bool], str]
SIZE: Rule = (_is_size, "a whole number from 1 to 2147483647")
# PyTorch's own modules take no features and no channels too.
SIZE_OR_ZERO: Rule = (_is_size_or_zero, "a whole number from 0 to 2147483647")
FLAG: Rule = (lambda value: isinstance(value, bool), "True or False")
SHARE: Rule = (_number(0.0, 1.0), "a number from 0 to 1")
NOT_NEGATIVE: Rule = (_number(0.0, torch.finfo(torch.float64).max), "a number of at least 0")
POSITIVE: Rule = (_number(torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).max), "a number above 0")

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
         "interleaved", "starting", "outgoing"),
        FLAG,
    ),
    **dict.fromkeys(("dropout", "msa_dropout", "pair_dropout", "label_smoothing"), SHARE),
    "rotary_dim": (lambda value: _is_size(value) and value % 2 == 0, "even and at least 2"),
    "eps": NOT_NEGATIVE,
    "softcap": NOT_NEGATIVE,
    "base": POSITIVE,
    "rope_base": (POSITIVE[0], "a number above 0, or None"),
    "normalized_shape": (_is_shape, "a size, or a list of sizes"),
    **dict.fromkeys(("kernel_size", "stride", "dilation"), (_sides(_is_size), "one or two whole numbers above 0")),
    "padding": (_is_padding, "one or two whole numbers of at least 0"),
    "divisor_override": (lambda value: _is_whole(value) and value != 0, "a whole number other than 0"),
    "ignore_index": (_is_whole, "a whole number"),
    "window": (_is_window, "two whole numbers, each −1 or more"),
    "reduction": _one_of("none", "mean", "sum"),
    "approximate": _one_of("none", "tanh"),
    "device": (_is_device, "a device that PyTorch knows here"),
    "dtype": (lambda value: isinstance(value, torch.dtype) and value.is_floating_point, "a floating-point dtype"),
}  # fmt: skip
