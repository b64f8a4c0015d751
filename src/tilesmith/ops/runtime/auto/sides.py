"""The choice of `auto`: our kernels or PyTorch, for the forward and for the backward.

In this order: what was measured for this very call on this machine, what `tilesmith tune` measured for its bucket of
sizes, what the model for this device predicts, what was measured for the nearest sizes. Without all four, our kernels
compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from tilesmith.ops.runtime import tuning
from tilesmith.ops.runtime.auto import model
from tilesmith.ops.runtime.auto.features import Arguments, dtype_class, features

Direction = Literal["forward", "backward"]
OURS, TORCH = "tilesmith", "torch"


def torch_computes(
    operator: str, arguments: Arguments, bucket: str, device: torch.device, direction: Direction
) -> bool:
    """Return whether PyTorch computes this direction of a call. A backward is always that of a training step."""
    if device.type != "cuda":
        return False
    measured = tuning.measured(device, operator, signature(arguments.values(), direction), direction)
    if measured is None:
        measured = tuning.tuned_winner(device, operator, bucket, direction)
    if measured is not None:
        return measured == TORCH
    predicted = _predicted(operator, arguments, device, direction)
    if predicted is not None:
        return predicted
    return tuning.prefers_torch(device, operator, bucket, training=direction == "backward")


def _predicted(operator: str, arguments: Arguments, device: torch.device, direction: Direction) -> bool | None:
    """Return whether the model chooses PyTorch; None without a model for such a call."""
    dtypes = dtype_class(arguments)
    fitted = None if dtypes is None else model.model_of(_slug(device), operator, dtypes, direction)
    if fitted is None:
        return None
    described = features(operator, arguments, _multiprocessors(device))
    return None if described is None else fitted.takes_torch(described)


@lru_cache
def _slug(device: torch.device) -> str:
    return tuning.slug(torch.cuda.get_device_name(device))


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def signature(arguments: Iterable[object], direction: Direction) -> str:
    """Return a key of everything that the time of a call depends on: shapes, dtypes, strides, options, gradients."""
    return " ".join(_word(value, direction) for value in arguments)


def _word(value: object, direction: Direction) -> str:
    if not isinstance(value, Tensor):
        return str(value).replace(" ", "")
    shape = "x".join(map(str, value.shape))
    strides = "" if value.is_contiguous() else f"[{','.join(map(str, value.stride()))}]"
    wanted = "'" if direction == "backward" and value.requires_grad else ""
    return f"{shape}{strides}:{str(value.dtype).removeprefix('torch.')}{wanted}"
