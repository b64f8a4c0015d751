"""nn.Linear: state, results and gradients of torch's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.nn.linear import Linear


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def results(module: torch.nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    """Return the output, and the gradients of the input and of every parameter."""
    x = x.detach().clone().requires_grad_()
    y = module(x)
    y.backward(torch.arange(y.numel()).mul(1.7).sin().view(y.shape))
    return {"y": y.detach(), "x": x.grad, **{name: parameter.grad for name, parameter in module.named_parameters()}}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8,), (5, 8), (2, 3, 8), (0, 8)], ids=str)
def test_linear_matches_torch(bias: bool, shape: tuple[int, ...]) -> None:
    ours, torchs = Linear(8, 12, bias=bias), torch.nn.Linear(8, 12, bias=bias)
    ours.load_state_dict(torchs.state_dict())
    x = torch.randn(shape)
    torch.testing.assert_close(results(ours, x), results(torchs, x))


def test_state_dicts_are_interchangeable_with_torch() -> None:
    ours, torchs = Linear(4, 6), torch.nn.Linear(4, 6)
    torchs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(torchs.weight, ours.weight)


def test_gradients_of_parameters_are_not_copied() -> None:
    """Gradients have the parameters' layout, so the first accumulation does not copy them."""
    layer = Linear(8, 12)
    layer(torch.randn(5, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.stride() == layer.weight.stride()


def test_autocast_applies() -> None:
    layer = Linear(8, 12)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(5, 8)).dtype == torch.bfloat16


def test_linear_rejects_another_width() -> None:
    with pytest.raises(ValueError, match=r"^Linear: x has shape \(5, 7\), but must end in in_features 8"):
        Linear(8, 12)(torch.randn(5, 7))
