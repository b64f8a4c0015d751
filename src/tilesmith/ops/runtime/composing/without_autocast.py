"""Turning off autocast and gradients while an operator calls other operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

_NOTHING_TO_TURN_OFF: AbstractContextManager[None] = nullcontext()


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Return a context without autocast and gradients: the operator has chosen the dtypes, and knows its gradient.

    Mostly both are off already, since an autograd function runs without gradients. This check runs at every call, so it
    has to be cheap.
    """
    computing = "cpu" if x.is_meta else x.device.type  # autocast does nothing to meta tensors
    if torch.is_grad_enabled() or torch.is_autocast_enabled(computing):
        return _turned_off(computing)
    return _NOTHING_TO_TURN_OFF


@contextmanager
def _turned_off(computing: str) -> Iterator[None]:
    with torch.no_grad(), torch.autocast(computing, enabled=False):
        yield
