"""The kind of each argument, checked against the operator's annotations before anything else looks at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

LARGEST = 2**63 - 1  # of an int64, as PyTorch's schemas hold whole numbers
_NAMES = {Tensor: "a tensor", bool: "True or False", int: "a whole number", float: "a number", str: "a string"}


class Kinds:
    """What each argument of an operator may be: a tensor, a number, a flag, a string, a sequence, None."""

    def __init__(self, operator: str, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        hints.pop("return", None)
        self._operator = operator
        self._of = {name: _kinds_in(hint) for name, hint in hints.items()}

    def require(self, arguments: Sequence[Any]) -> None:
        """Raise a TypeError or ValueError that names the first argument of a wrong kind. All arguments, in order."""
        for (name, kinds), value in zip(self._of.items(), arguments, strict=True):
            place = f"{self._operator}: {name}"
            if isinstance(value, Tensor):
                self._require_tensor(place, kinds, value)
            elif not any(_is_of(kind, value) for kind in kinds):
                raise TypeError(f"{place} is a {type(value).__name__}, but must be {_listed(kinds)}")
            else:
                _require_range(place, kinds, value)

    def _require_tensor(self, place: str, kinds: set[type], tensor: Tensor) -> None:
        if Tensor not in kinds:
            raise TypeError(f"{place} is a tensor, but must be {_listed(kinds)}")
        if tensor.is_nested:
            raise TypeError(f"{place} is a nested tensor, but must be a dense tensor")
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise TypeError(f"{place} has layout {layout}, but must be a dense tensor")
        if tensor.is_quantized:
            raise TypeError(f"{place} is quantized, but must be a dense tensor")


def _kinds_in(hint: Any) -> set[type]:
    """Return the classes that an annotation allows; a sequence of numbers counts as tuple."""
    if get_origin(hint) is not None and not isinstance(get_origin(hint), type):
        return set().union(*(_kinds_in(one) for one in get_args(hint)))  # a Union or a Literal
    if get_origin(hint) is not None and get_args(hint) and get_origin(hint).__name__ == "UnionType":
        return set().union(*(_kinds_in(one) for one in get_args(hint)))
    origin = get_origin(hint) or hint
    if origin in _NAMES or origin is NoneType:
        return {origin}
    return {tuple} if isinstance(origin, type) and issubclass(origin, Sequence) else {object}


def _is_of(kind: type, value: object) -> bool:
    if isinstance(value, bool):
        return kind in (bool, object)
    if kind is int:
        return isinstance(value, (int, torch.SymInt))
    if kind is float:
        return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))
    if kind is bool:
        return isinstance(value, torch.SymBool)
    return isinstance(value, (tuple, list) if kind is tuple else kind)


def _require_range(place: str, kinds: set[type], value: Any) -> None:
    """Require that whole numbers fit into 64 bits, and that numbers are not NaN."""
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(one, int) and not -LARGEST <= one <= LARGEST:
            raise ValueError(f"{place} is {_short(one)}, but must fit into 64 bits")
        if isinstance(one, float) and one != one:
            raise ValueError(f"{place} is nan, but must be a number")


def _short(number: int) -> str:
    """Return a large number in few digits."""
    return f"{'-' if number < 0 else ''}2^{abs(number).bit_length() - 1} or more"


def _listed(kinds: set[type]) -> str:
    names = [name for kind, name in _NAMES.items() if kind in kinds]
    names += ["a tuple"] * (tuple in kinds) + ["None"] * (NoneType in kinds)
    return " or ".join(names)
