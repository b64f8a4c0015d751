"""The gradient guard: a run in which a parameter gets no gradient, or one that is not finite, stops and names it.

A kernel without a backward makes a model fast that learns nothing, and nothing else would say so. Looking costs one
reading of the gradients on the device; the host asks for the verdict only now and then.
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
    """Which parameters have no gradient that can be used, in one line."""


class GradientGuard:
    """Watches the trainable parameters of a model."""

    def __init__(self, named_parameters: Iterable[tuple[str, Parameter]]) -> None:
        trainable = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
        self._names = [name for name, _ in trainable]
        self._parameters = [parameter for _, parameter in trainable]
        self._broken = torch.zeros(len(trainable), dtype=torch.bool, device=self._parameters[0].device)

    def observe(self) -> None:
        """After a backward: that every gradient is there, and, without waiting for the device, that it is finite.

        Of the first step that shows a gradient which is not finite all such are remembered, and none of the later
        steps: by then they are everywhere.
        """
        missing = [
            name for name, parameter in zip(self._names, self._parameters, strict=True) if parameter.grad is None
        ]
        if missing:
            raise GradientError(
                f"no gradient reaches {_listed(missing)}, of {len(self._names)} parameters that are to be trained: "
                "something between there and the loss has no backward"
            )
        sizes = torch.stack(torch._foreach_norm([_local(parameter.grad) for parameter in self._parameters]))
        broken = ~sizes.isfinite()
        torch.where(self._broken.any(), self._broken, broken, out=self._broken)

    def require_finite(self) -> None:
        """Raise if a gradient since the start was not finite. Waits for the device, and for the other processes."""
        broken = self._broken.int()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(broken, torch.distributed.ReduceOp.MAX)
        found = [name for name, bad in zip(self._names, broken.tolist(), strict=True) if bad]
        if found:
            raise GradientError(f"the gradient of {_listed(found)} is not finite")


def _local(gradient: Tensor | None) -> Tensor:
    """What this process holds of it."""
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
