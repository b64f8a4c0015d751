"""What a version may choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Parts:
    """What the model is put together from. Every choice for a part has the same meaning."""

    block: Callable[..., nn.Module]
    """Makes an Evoformer block with the arguments of `nn.evoformer.EvoformerBlock`."""
    linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    """x · weightᵀ + bias."""
    loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """Mean cross-entropy of the logits x · weightᵀ + bias against targets."""
    lookup: Callable[[Tensor, Tensor], Tensor] = F.embedding
    """Rows of a table by their numbers."""
