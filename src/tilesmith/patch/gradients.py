"""Gradients by PyTorch, where those of our kernels do not do: whoever differentiates them again gets nowhere there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def by_pytorch(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    needed: Sequence[bool],
    output_gradients: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """The gradients of function(*inputs), where they are needed, such that they can be differentiated themselves."""
    with torch.enable_grad():
        outputs = function(*inputs)
    reached = [place for place, gradient in enumerate(output_gradients) if gradient is not None]
    found = iter(
        torch.autograd.grad(
            [outputs[place] for place in reached],
            [one for one, is_needed in zip(inputs, needed, strict=True) if is_needed],
            [output_gradients[place] for place in reached],
            create_graph=True,
            allow_unused=True,
        )
    )
    return tuple(next(found) if is_needed else None for is_needed in needed)
