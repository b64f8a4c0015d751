"""Gradients that can be differentiated again, computed by PyTorch: the backward of our kernels has no gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def wants_graph() -> bool:
    """Return, inside a backward, whether its result will be differentiated; torch.compile never does that."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def differentiable_gradients(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    needed: Sequence[bool],
    output_gradients: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of function(*inputs) with a graph of their own; None for each that is not needed."""
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
