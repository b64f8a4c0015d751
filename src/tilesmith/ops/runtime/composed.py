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


ROWS_OF_A_SUM = 2048
MOST_SUMS = 64


def product_over_rows(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ·b. In single precision a sum over very many rows is made of shorter ones, as the gradient of a weight for
    every pair of residues is: the BLAS adds up such a sum in one go where the result is large enough to fill the GPU,
    and the sixteen thousandth term is rounded like the first thousand."""
    rows = a.shape[0]
    of_a_sum = max(ROWS_OF_A_SUM, -(-rows // MOST_SUMS))
    if a.dtype != torch.float32 or rows <= of_a_sum:
        return torch.mm(a.t(), b)
    sums = rows // of_a_sum
    left, right = (one[: sums * of_a_sum].reshape(sums, of_a_sum, one.shape[1]) for one in (a, b))
    total = torch.bmm(left.transpose(1, 2), right).sum(0)
    rest = slice(sums * of_a_sum, rows)
    return total if rest.start == rows else total.addmm_(a[rest].t(), b[rest])
