"""Circumstances of a call that change nothing about its outputs, but that a candidate can ask for.

A candidate may launch something else in another thread, on another stream, after many calls. So the judge records a
call in each circumstance, and replays it where its launches differ from those of an ordinary call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tilesmith.lab.inspect.running.gpu_stand_in import Stream

STREAM, THREAD, INFERENCE, ORDINARY_MEMORY = (
    "on another stream",
    "in another thread",
    "in inference mode",
    "in ordinary memory",
)
OFFSET, SAME_INPUTS, MANY_CALLS = "inside of larger storages", "with one tensor for equal inputs", "after many calls"
OTHER_GPU = "on another GPU"
CIRCUMSTANCES = (STREAM, THREAD, INFERENCE, ORDINARY_MEMORY, OFFSET, SAME_INPUTS, OTHER_GPU, MANY_CALLS)
TURNED = "inverted: "  # before the name of an expression of `forcing.py`
LOWER = torch.bfloat16  # under autocast, a candidate may compute with fewer bits
OFFSET_ELEMENTS = 256  # keeps the alignment that allocations have


class _OtherStream(Stream):
    cuda_stream = stream_id = 1


@contextmanager
def around(circumstance: str, device: str = "cpu") -> Iterator[None]:
    """Make a call in a circumstance of this process. Those of the inputs are made by `inputs_in`."""
    if circumstance == STREAM and device == "cpu":
        with mock.patch.object(torch.cuda, "current_stream", return_value=_OtherStream()):
            yield
    elif circumstance == INFERENCE:
        # The mode itself would keep operators whole that PyTorch otherwise takes apart before the tape sees them.
        with mock.patch.object(torch, "is_inference_mode_enabled", return_value=True):
            yield
    elif circumstance == ORDINARY_MEMORY:
        before = torch.are_deterministic_algorithms_enabled()
        torch._C._set_deterministic_algorithms(False)
        try:
            yield
        finally:
            torch._C._set_deterministic_algorithms(before, warn_only=True)
    else:
        yield


def inputs_in(circumstance: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs as a circumstance has them: behind an offset, or one tensor for all of one form."""
    if circumstance == OFFSET:
        return {name: _behind_an_offset(one) if isinstance(one, Tensor) else one for name, one in inputs.items()}
    if circumstance.startswith(TURNED):
        for one in filter(_is_float, inputs.values()):
            if 0 not in one.stride():
                one.copy_(one.to(LOWER))
        return dict(inputs)
    if circumstance != SAME_INPUTS:
        return dict(inputs)
    known: dict[Any, Tensor] = {}
    return {
        name: known.setdefault((one.shape, one.stride(), one.dtype), one) if _is_float(one) else one
        for name, one in inputs.items()
    }


def lowered(inputs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return inputs with floating-point tensors in a dtype of fewer bits."""
    return {name: one.to(LOWER) if _is_float(one) else one for name, one in inputs.items()}


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _behind_an_offset(tensor: Tensor) -> Tensor:
    content = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    storage = torch.zeros(OFFSET_ELEMENTS + content.numel(), dtype=tensor.dtype)
    storage[OFFSET_ELEMENTS:] = content
    return storage.as_strided(tensor.size(), tensor.stride(), OFFSET_ELEMENTS + tensor.storage_offset())
