"""The gradient guard: it stops a run in which a gradient is missing or not finite, and names the parameter.

A kernel without a backward makes a model fast that learns nothing, and no other check notices. The guard reads the
gradients once per step on the device; the host reads the verdict every few steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

MOST_NAMED = 3


class GradientError(Exception):
    """Parameters have no usable gradient; the message names them in one line."""


class GradientGuard:
    """Watches the trainable parameters of a model."""

    def __init__(self, named_parameters: Iterable[tuple[str, Parameter]]) -> None:
        trainable = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
        self._names = [name for name, _ in trainable]
        self._parameters = [parameter for _, parameter in trainable]
        self._broken = torch.zeros(len(trainable), dtype=torch.bool, device=self._parameters[0].device)

    def observe(self) -> None:
        """Raise GradientError where a gradient is missing, and record, without waiting, which are not finite.

        Only the first step with such gradients is recorded: in later steps they spread to all parameters.
        """
        missing = [
            name for name, parameter in zip(self._names, self._parameters, strict=True) if parameter.grad is None
        ]
        if missing:
            raise GradientError(
                f"no gradient reaches {_listed(missing)}, of {len(self._names)} trainable parameters: "
                "an operation between these parameters and the loss has no backward"
            )
        sizes = torch.stack(torch._foreach_norm([_local(parameter.grad) for parameter in self._parameters]))
        broken = ~sizes.isfinite()
        torch.where(self._broken.any(), self._broken, broken, out=self._broken)

    def require_finite(self) -> None:
        """Raise GradientError where a gradient was not finite. This waits for the device and the other processes."""
        broken = self._broken.int()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(broken, torch.distributed.ReduceOp.MAX)
        found = [name for name, bad in zip(self._names, broken.tolist(), strict=True) if bad]
        if found:
            raise GradientError(f"the gradient of {_listed(found)} is not finite")


def _local(gradient: Tensor | None) -> Tensor:
    """Return this process's part of a gradient."""
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
