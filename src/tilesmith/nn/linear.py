"""Linear, on `ops.matmul`."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked, require_input
from tilesmith.ops.matmul import matmul

__all__ = ["Linear"]


@checked
class Linear(torch.nn.Linear):
    """torch.nn.Linear on `ops.matmul`."""

    def forward(self, x: Tensor) -> Tensor:
        require_input("Linear", "x", x, in_features=self.in_features)
        return matmul(x, self.weight.t(), self.bias)
