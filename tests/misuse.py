"""Wrong arguments, one at a time: tensors of other kinds, numbers out of range, other types."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from tilesmith.spec import Inputs, Spec

Misuse = tuple[str, str, Inputs]  # the argument, what is wrong with it, all arguments


class Labelled(Tensor):
    """A subclass without behaviour of its own."""


def misuses(spec: Spec, inputs: Inputs) -> Iterator[Misuse]:
    """Yield calls of an operator that each have one wrong argument."""
    return misuses_of(spec.op, inputs)


def misuses_of(function: Callable[..., Any], inputs: Inputs) -> Iterator[Misuse]:
    """Yield calls that each have one wrong argument. The inputs are a correct call."""
    parameters = signature(function).parameters
    complete = {name: inputs.get(name, one.default) for name, one in parameters.items()}
    for name, value in complete.items():
        for what, wrong in _instead_of(value):
            yield name, what, {**complete, name: wrong}


def unclear(function: str, arguments: Inputs, error: Exception) -> str:
    """Return why an error is unclear; nothing where it is one sentence that names the function and an argument."""
    text = str(error)
    if type(error) not in (TypeError, ValueError):
        return f"{type(error).__name__}: {text[:150]}"
    # Where two arguments do not go together, either may be named.
    if not text.startswith(f"{function}: ") or not any(name in text for name in arguments):
        return f"names neither function nor argument: {text[:150]}"
    return f"more than one sentence: {text}" if "\n" in text or len(text) > 700 else ""


def _instead_of(value: Any) -> Iterator[tuple[str, Any]]:
    yield "an object", object()
    yield "a dict", {}
    yield "a set", {1}
    yield "a complex number", 1j
    yield "bytes", b"a"
    if isinstance(value, Tensor):
        yield from _wrong_tensors(value)
        yield "None", None
        yield "a list", value.tolist() if value.numel() < 100 else [1.0]
        yield "a number", 1.5
        yield "a string", "a"
        return
    yield "a tensor of two", torch.zeros(2)
    yield "a nested list", [[1], [2]]
    yield "2**70", 2**70
    yield "-2**70", -(2**70)
    yield "a tuple with 2**70", (2**70, 1)
    yield "nan", float("nan")
    yield "a long tuple", (1,) * 7
    yield "a tuple of strings", ("a", "b")
    if not isinstance(value, str):
        yield "a string", "a"
    if isinstance(value, bool):
        yield "1", 1
    elif isinstance(value, (int, float)):
        yield "True", True
        yield "10**400", 10**400


def _wrong_tensors(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detached = value.detach()
        yield "complex", detached.to(torch.complex64)
        if value.dtype != torch.bool:
            yield "bool", detached.to(torch.bool)
        yield "uint8", detached.to(torch.uint8)
        if value.is_floating_point():
            yield "int64", detached.to(torch.int64)
            yield "quantized", torch.quantize_per_tensor(detached.float(), 0.1, 0, torch.qint8)
            yield "nested", torch.nested.nested_tensor([detached, detached])
            yield "jagged", torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)], layout=torch.jagged)
        yield "on meta", detached.to("meta")
        yield "with a dimension more", detached.expand(2, *value.shape)
        yield "with three dimensions more", detached[(None,) * 3].expand(2, 2, 2, *value.shape)
        yield "without dimensions", torch.zeros((), dtype=value.dtype)
        if value.ndim:
            yield "sparse", detached.to_sparse()
            yield "longer", torch.cat([detached, detached, detached])
            yield "with a longer last dimension", torch.cat([detached, detached, detached], dim=-1)
            yield "empty", detached[:0]
            yield "empty in its last dimension", detached[..., :0]
        if value.ndim == 2:
            yield "sparse rows", detached.to_sparse_csr()
