"""Comparison of pooling with PyTorch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops import SPECS


def assert_as_torchs_pooling(name: str, x: Tensor, **options: Any) -> None:
    """Compare result, gradient and the strides of both with PyTorch's."""
    ours, right = x.detach().requires_grad_(), x.detach().clone().requires_grad_()
    y, wanted = SPECS[name].op(ours, **options), SPECS[name].rivals["torch"](right, **options)
    torch.testing.assert_close(y, wanted, equal_nan=True)
    assert y.stride() == wanted.stride()
    # Sums of such small whole numbers are exact in every dtype and order.
    cotangent = torch.randint(-20, 21, wanted.shape).to(wanted.dtype)
    y.backward(cotangent)
    wanted.backward(cotangent)
    torch.testing.assert_close(ours.grad, right.grad)
    assert ours.grad is not None
    assert ours.grad.stride() == torch.empty_like(x).stride()
