"""The parts that a version chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Parts:
    """The parts of the model. All choices for a part compute the same."""

    block: Callable[..., nn.Module]
    """Returns an Evoformer block; takes the arguments of `nn.evoformer.EvoformerBlock`."""
    linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    """x · weightᵀ + bias."""
    loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """Mean cross-entropy of the logits x · weightᵀ + bias against targets."""
    embedding: Callable[[Tensor, Tensor], Tensor] = F.embedding
    """table[indices], from indices and table."""
