"""RMSNorm in the two forms of transformers: Llama's, and Gemma's with the factor 1 + weight.

Both compute in single precision and round once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.rms_norm import rms_norm
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in


def plain_norm(self: Any, hidden_states: Tensor) -> Tensor:
    # A weight in higher precision, as under autocast, raises the precision of the result; later code relies on that.
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    normal: Tensor = rms_norm(hidden_states.to(dtype), *plain_scale(self))
    return normal


def plain_scale(norm: Any) -> tuple[Tensor, float]:
    return norm.weight, norm.variance_epsilon


def gemma_norm(self: Any, x: Tensor) -> Tensor:
    normal: Tensor = rms_norm(x, *gemma_scale(self))
    return normal


def gemma_scale(norm: Any) -> tuple[Tensor, float]:
    return 1.0 + norm.weight.float(), norm.eps


SCALES: dict[Any, Callable[[Any], tuple[Tensor, float]]] = {plain_norm: plain_scale, gemma_norm: gemma_scale}
"""For the `forward` of each norm, the function that returns the weight and eps for rms_norm."""


def norm_forward(original: Callable[..., Any], is_gemma: bool) -> Callable[..., Tensor]:
    """Return the replacement for a norm's `forward`; UnknownCodeError where the original uses other attributes."""
    expected = {"_norm", "weight"} if is_gemma else {"variance_epsilon", "weight"}
    if not expected <= names_in(original):
        raise UnknownCodeError.of(original)
    return gemma_norm if is_gemma else plain_norm
