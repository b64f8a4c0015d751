"""One NamedTuple in Python, one argument for each of its fields in a torch operator's schema.

A torch operator takes tensors and numbers only, and autograd sees a tensor only if it is an argument itself. So a group
of weights is one named argument in our code, and several arguments wherever PyTorch looks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin, get_type_hints


def flat_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with each argument that is a NamedTuple replaced by the tuple's fields.

    Callers give the fields by position or by name. A field that may be None is None by default.
    `torch.library.infer_schema` and `inspect.signature` see the fields.
    """
    signature = inspect.signature(function, eval_str=True)
    groups: list[tuple[int, int, Any]] = []  # first field, last field + 1, NamedTuple class; the last group first
    flat: list[inspect.Parameter] = []
    defaults: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        group = get_origin(parameter.annotation) or parameter.annotation
        if not hasattr(group, "_fields"):
            flat.append(parameter)
            if parameter.default is not parameter.empty:
                defaults[parameter.name] = parameter.default
            continue
        groups.insert(0, (len(flat), len(flat) + len(group._fields), group))
        for name, annotation in _annotations(group, get_args(parameter.annotation)).items():
            flat.append(inspect.Parameter(name, parameter.kind, annotation=annotation))
            if type(None) in get_args(annotation):
                defaults[name] = None
    names = [parameter.name for parameter in flat if parameter.kind is not parameter.VAR_POSITIONAL]

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        if named or len(values) < len(names):
            given = {**defaults, **dict(zip(names, values, strict=False)), **named}
            if given.keys() != set(names):
                wrong = ", ".join(sorted(given.keys() ^ set(names)))
                raise TypeError(f"{function.__name__}: missing or unknown arguments: {wrong}")
            values = tuple(given[name] for name in names)
        arguments = list(values)
        for start, end, group in groups:
            arguments[start:end] = [group(*arguments[start:end])]
        return function(*arguments)

    call.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]  # functions take any
    return call


def _annotations(group: type, types: tuple[Any, ...]) -> dict[str, Any]:
    """Return the annotation of each field of a NamedTuple class. `types`: what its type variable stands for."""
    return {name: _substituted(hint, types) for name, hint in get_type_hints(group).items()}


def _substituted(hint: Any, types: tuple[Any, ...]) -> Any:
    if isinstance(hint, TypeVar):
        return types[0]
    return hint[types[0]] if getattr(hint, "__parameters__", ()) else hint
