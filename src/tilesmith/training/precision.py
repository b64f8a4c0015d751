"""Computing in a narrow dtype while parameters and the optimiser's state stay wide.

The model sees its parameters rounded, so all its activations are narrow too; their gradients are widened again before
the optimiser sees them. That is what FSDP's mixed precision means, here for one process and for DDP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call

# Parameters that are rounded together: few launches, and yet the first gradients are there, for DDP to send, long
# before the last.
TOGETHER = 16


class Rounded(nn.Module):
    """A model that computes with its parameters in another dtype."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        rounded = dict(self._rounded())
        result: Tensor = functional_call(self.model, rounded, inputs)
        return result

    def _rounded(self) -> Iterator[tuple[str, Tensor]]:
        named = list(self.model.named_parameters())
        for first in range(0, len(named), TOGETHER):
            names, parameters = zip(*named[first : first + TOGETHER], strict=True)
            yield from zip(names, rounded(parameters, self.dtype), strict=True)


def rounded(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """The tensors in another dtype, differentiably."""
    if torch.compiler.is_compiling():
        return [tensor.to(dtype) for tensor in tensors]  # which the compiler puts together better than we can
    made: Sequence[Tensor] = _Rounding.apply(dtype, *tensors)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    return made


class _Rounding(Function):
    """One launch for many tensors, forward and backward."""

    @staticmethod
    def forward(context: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        context.dtypes = [tensor.dtype for tensor in tensors]
        return _cast(tensors, [dtype] * len(tensors))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_cast(gradients, context.dtypes)


def _cast(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    made = tuple(torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True))
    torch._foreach_copy_(made, list(tensors))
    return made
