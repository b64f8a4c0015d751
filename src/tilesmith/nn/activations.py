"""Activations, and the feed-forward blocks made of them."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.silu import silu


class SiLU(torch.nn.Module):
    """torch.nn.SiLU on `ops.silu`; never in place."""

    def forward(self, x: Tensor) -> Tensor:
        return silu(x)  # type: ignore[no-any-return]  # an Operator returns Any
