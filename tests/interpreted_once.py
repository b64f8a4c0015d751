"""Launches interpreted once, for tests of PyTorch's side that call an operator on the same inputs again and again."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor

from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain import interpreter

_interpret = Plan._interpret
_Written = list[tuple[int, bytes]]  # the slot of each tensor that the launches wrote, and its memory afterwards
_known: dict[tuple[int, bytes], tuple[Plan, _Written]] = {}  # holds the plan, so that no other plan gets its id


@contextmanager
def interpreting_once() -> Iterator[None]:
    """Interpret the launches of a plan on the same inputs once in this process; afterwards copy what they wrote."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(Plan, "_interpret", _interpret_or_copy)
        yield


def _interpret_or_copy(plan: Plan, tensors: list[Tensor]) -> None:
    if interpreter.is_interpreting():  # somebody watches the launches
        _interpret(plan, tensors)
        return
    n_inputs = len(tensors) - len(plan._buffers)
    before = [_memory(tensor) for tensor in tensors[:n_inputs]]
    key = id(plan), hashlib.blake2b(b"".join(before)).digest()
    if key in _known:
        for slot, memory in _known[key][1]:
            ctypes.memmove(tensors[slot].data_ptr(), memory, len(memory))
        return
    _interpret(plan, tensors)
    after = [_memory(tensor) for tensor in tensors]
    _known[key] = plan, [(slot, one) for slot, one in enumerate(after) if slot >= n_inputs or one != before[slot]]


def _memory(tensor: Tensor) -> bytes:
    """Return all bytes from a tensor's first to its last element, without a call of a torch operator."""
    if not tensor.numel():
        return b""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return ctypes.string_at(tensor.data_ptr(), (last + 1) * tensor.element_size())
