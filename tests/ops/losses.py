"""Runs a loss forward and backward, for tests that compare two implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from differentiation import leaves_of
from torch import Tensor

from tilesmith.spec import Inputs, called, is_differentiable


def cotangent_of(loss: Tensor) -> Tensor:
    """Return an incoming gradient without zeros or regular patterns, the same at each call."""
    return torch.arange(1, loss.numel() + 1).mul(1.7).sin().view(loss.shape).to(loss)


def results_of(function: Callable[..., Any], inputs: Inputs) -> dict[str, Tensor]:
    """Return the loss and the gradient of every argument."""
    leaves = leaves_of(inputs)
    loss = called(function, leaves)
    torch.autograd.backward([loss], [cotangent_of(loss)])
    gradients = {f"gradient of {name}": value.grad for name, value in leaves.items() if is_differentiable(value)}
    return {"loss": loss.detach(), **gradients}
