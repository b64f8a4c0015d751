"""Mixed precision: the model computes in bf16, while parameters and the optimiser's state stay float32.

The model reads rounded parameters, so its activations are bf16 too. The gradients are converted to float32 before the
optimiser reads them. FSDP does the same; this module does it for one process and for DDP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call

# Parameters per launch. More save launches; fewer let DDP send the first gradients earlier.
PARAMETERS_PER_LAUNCH = 16


class Rounded(nn.Module):
    """A model that computes with its parameters rounded to another dtype."""

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
        for first in range(0, len(named), PARAMETERS_PER_LAUNCH):
            names, parameters = zip(*named[first : first + PARAMETERS_PER_LAUNCH], strict=True)
            yield from zip(names, rounded(parameters, self.dtype), strict=True)


def rounded(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Return the tensors in another dtype, with gradients in their own."""
    if torch.compiler.is_compiling():
        return [tensor.to(dtype) for tensor in tensors]  # the compiler fuses these
    made: Sequence[Tensor] = _Rounding.apply(dtype, *tensors)  # type: ignore[no-untyped-call]  # PyTorch leaves apply untyped
    return made


class _Rounding(Function):
    """Rounds many tensors in one launch, forward and backward."""

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
