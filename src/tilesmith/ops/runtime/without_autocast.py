"""What code needs that computes an operator by calling others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def as_given(x: Tensor) -> AbstractContextManager[None]:
    """Without what PyTorch does to a user's own calls: the operator has chosen dtypes, and knows its gradient.

    Mostly there is nothing to turn off, since an autograd function runs without gradients: to find that out is cheap,
    and this runs at every call.
    """
    computing = "cpu" if x.is_meta else x.device.type  # to meta tensors PyTorch does nothing anyway
    if torch.is_grad_enabled() or torch.is_autocast_enabled(computing):
        return _turned_off(computing)
    return _AS_IT_IS


@contextmanager
def _turned_off(computing: str) -> Iterator[None]:
    with torch.no_grad(), torch.autocast(computing, enabled=False):
        yield
