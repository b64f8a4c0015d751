"""Norms."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.rms_norm import rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm on `ops.rms_norm`. Several normalised dimensions count as one."""

    def forward(self, x: Tensor) -> Tensor:
        count = len(self.normalized_shape)
        if tuple(x.shape[-count:]) != tuple(self.normalized_shape):
            raise ValueError(
                f"RMSNorm: x has shape {tuple(x.shape)}, "
                f"but must end in normalized_shape {tuple(self.normalized_shape)}"
            )
        eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps if self.eps is None else self.eps
        if count == 1:
            return rms_norm(x, self.weight, eps)  # type: ignore[no-any-return]  # an Operator returns Any
        weight = None if self.weight is None else self.weight.flatten()
        return rms_norm(x.flatten(-count), weight, eps).view(x.shape)  # type: ignore[no-any-return]  # likewise
