"""Checks of the functions' arguments. An error names the function, the argument, its value, and what it must be."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tilesmith.ops.runtime.arguments import dtype_name, require_floating, require_same_device
from tilesmith.ops.runtime.kernels import MOST_PLANS, look
from tilesmith.ops.runtime.kinds import Kinds

MASKS = ("mask", "kv_lengths")
P = ParamSpec("P")
R = TypeVar("R")


def checked(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check every argument against its annotation, before a function that users know as `name` looks at it.

    Tensors must be dense, on one device, and of a floating-point dtype, but for masks.
    """

    def with_checks(function: Callable[P, R]) -> Callable[P, R]:
        kinds, signature = Kinds(name, function), inspect.signature(function)
        passed: set[Hashable] = (
            set()
        )  # calls whose like was checked before: the checks take a fifth of a call's host time

        def check(*args: P.args, **named: P.kwargs) -> None:
            try:
                bound = signature.bind(*args, **named)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
            bound.apply_defaults()
            _require(name, kinds, bound.arguments)

        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            if not torch.compiler.is_compiling():
                key = look((*args, *named.values())), *named
                if key not in passed:
                    check(*args, **named)
                    if len(passed) >= MOST_PLANS:
                        passed.clear()
                    if key[0] is not None:
                        passed.add(key)
            return function(*args, **named)

        return call

    return with_checks


def _require(name: str, kinds: Kinds, arguments: dict[str, Any]) -> None:
    kinds.require(list(arguments.values()))
    tensors = {key: value for key, value in arguments.items() if isinstance(value, Tensor)}
    require_floating(name, **{key: one for key, one in tensors.items() if key not in MASKS})
    for key in MASKS:
        if key in tensors and tensors[key].is_complex():
            raise TypeError(f"{name}: {key} has dtype {dtype_name(tensors[key])}, but must be real")
    require_same_device(name, **tensors)


def require_shape(name: str, argument: str, tensor: Tensor | None, wanted: tuple[int, ...]) -> None:
    """Require a tensor of this shape, or None."""
    if tensor is not None and tuple(tensor.shape) != wanted:
        raise ValueError(f"{name}: {argument} has shape {tuple(tensor.shape)}, but must have {wanted}")
