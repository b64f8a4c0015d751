"""Other rounding: every module with parameters rounds its result and its gradient differently.

A second run of the same model on the same GPU often repeats the first to the last bit, and says nothing about the
size of rounding errors. So the second run moves each element of a module's result, and of the gradient that arrives
there, by up to one unit in the last place. Another implementation of the same formulas does that too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


def round_differently(model: nn.Module, seed: int) -> None:
    """Change the model in place: its modules round differently from now on."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        is_number = isinstance(output, Tensor) and output.is_floating_point()
        return _Moved.apply(output, generator) if is_number else output  # type: ignore[no-untyped-call]  # untyped

    for module in model.modules():
        if not list(module.children()) and list(module.parameters(recurse=False)):
            module.register_forward_hook(hook)


def moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return x with each element moved by up to one unit in the last place, at random."""
    noise = torch.empty_like(x).uniform_(-1, 1, generator=generator)
    return torch.addcmul(x, x, noise, value=torch.finfo(x.dtype).eps)


class _Moved(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, generator: torch.Generator) -> Tensor:
        context.generator = generator
        return moved(x, generator)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return moved(gradient, context.generator), None
