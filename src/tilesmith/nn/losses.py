"""Cross-entropy losses, of logits and of a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked, require_input
from tilesmith.ops.cross_entropy import cross_entropy
from tilesmith.ops.linear_cross_entropy import linear_cross_entropy


@checked
class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss on `ops.cross_entropy`, for class indices as targets and without class weights.

    As in torch, classes are the second dimension of the input, (N, C, d₁, d₂, …), or its only dimension; the kernel
    reads any strides without a copy. The loss is in fp32, or in fp64 for an fp64 input.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        if weight is not None:
            raise ValueError("CrossEntropyLoss: weight is given, but class weights are not supported; omit it")
        super().__init__(None, size_average, ignore_index, reduce, reduction, label_smoothing)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        require_input("CrossEntropyLoss", "input", input)
        logits = input.movedim(1, -1) if input.ndim > 1 else input
        return cross_entropy(logits, target, self.ignore_index, self.label_smoothing, self.reduction)


@checked
class LinearCrossEntropyLoss(torch.nn.Module):
    """A linear layer and the cross-entropy of its outputs, on `ops.linear_cross_entropy`: never stores all logits.

    Constructor and state dict are those of torch.nn.LinearCrossEntropyLoss, where torch has it. Class weights and
    losses of several dimensions are not supported. The layer is `linear`, a torch.nn.Linear.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)
        self.reduction = reduction
        self.ignore_index = -100 if ignore_index is None else ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            self.linear.bias,
            self.ignore_index,
            self.label_smoothing,
            self.reduction,
        )

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}"
