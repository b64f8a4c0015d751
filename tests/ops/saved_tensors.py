"""What autograd keeps for the backward of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def with_saved_addresses(function: Callable[..., Any], *arguments: Any) -> tuple[Any, set[int]]:
    """Return the function's result, and the addresses of the tensors that autograd keeps for its backward."""
    kept: set[int] = set()

    def noted(tensor: Tensor) -> Tensor:
        kept.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
        return function(*arguments), kept
