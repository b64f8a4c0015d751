"""Linear, on `ops.matmul`."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.matmul import matmul

__all__ = ["Linear"]


class Linear(torch.nn.Linear):
    """torch.nn.Linear on `ops.matmul`."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"Linear: x has shape {tuple(x.shape)}, but must end in in_features {self.in_features}")
        return matmul(x, self.weight.t(), self.bias)
