"""The gradient guard: missing gradients and gradients that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tilesmith.training.running.gradient_guard import GradientError, GradientGuard


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_finite_gradients_pass() -> None:
    one = model()
    guard = GradientGuard(one.named_parameters())
    one(torch.ones(2, 3)).sum().backward()
    guard.observe()
    guard.require_finite()


def test_parameter_without_gradient_is_named() -> None:
    one = model()
    guard = GradientGuard(one.named_parameters())
    one[1](one[0](torch.ones(2, 3)).detach()).sum().backward()
    with pytest.raises(GradientError, match=r"no gradient reaches 0\.weight, 0\.bias, of 4 trainable parameters"):
        guard.observe()


def test_frozen_parameter_needs_no_gradient() -> None:
    one = model()
    one[0].requires_grad_(False)
    guard = GradientGuard(one.named_parameters())
    one(torch.ones(2, 3)).sum().backward()
    guard.observe()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_first_gradient_that_is_not_finite_is_named(value: float) -> None:
    one = model()
    guard = GradientGuard(one.named_parameters())
    one(torch.ones(2, 3)).sum().backward()
    guard.observe()
    dict(one.named_parameters())["1.bias"].grad[1] = value  # type: ignore[index]  # the backward set it
    guard.observe()
    for parameter in one.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(value)
    guard.observe()
    with pytest.raises(GradientError, match=r"^the gradient of 1\.bias is not finite$"):
        guard.require_finite()


def test_more_than_three_names_are_counted() -> None:
    one = model()
    guard = GradientGuard(one.named_parameters())
    with pytest.raises(GradientError, match=r"0\.weight, 0\.bias, 1\.weight and 1 more"):
        guard.observe()
