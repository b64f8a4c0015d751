"""Convolution and pooling modules: state, results and gradients of torch's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.nn.images import AvgPool2d, Conv2d, MaxPool2d


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with ts.use("interpret"):
        yield


def results(module: torch.nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    """Return the output, and the gradients of the input and of every parameter."""
    x = x.detach().clone().requires_grad_()
    y = module(x)
    module.zero_grad()
    y.backward(torch.arange(y.numel()).mul(1.7).sin().view(y.shape))
    return {"y": y.detach(), "x": x.grad, **{name: parameter.grad for name, parameter in module.named_parameters()}}


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2},
    {"kernel_size": (2, 3), "padding": "same", "bias": False},
    {"kernel_size": 1, "padding": "valid", "groups": 4},
]
POOLINGS: list[tuple[type[torch.nn.Module], type[torch.nn.Module], dict[str, Any]]] = [
    (MaxPool2d, torch.nn.MaxPool2d, {"kernel_size": 2}),
    (
        MaxPool2d,
        torch.nn.MaxPool2d,
        {"kernel_size": (3, 2), "stride": 2, "padding": 1, "dilation": (1, 2), "ceil_mode": True},
    ),
    (AvgPool2d, torch.nn.AvgPool2d, {"kernel_size": 2}),
    (
        AvgPool2d,
        torch.nn.AvgPool2d,
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    ),
    (AvgPool2d, torch.nn.AvgPool2d, {"kernel_size": 2, "divisor_override": 3}),
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
class TestConv2d:
    def pair(self, options: dict[str, Any]) -> tuple[torch.nn.Module, torch.nn.Module]:
        torch.manual_seed(0)
        ours, torchs = Conv2d(4, 8, **options), torch.nn.Conv2d(4, 8, **options)
        ours.load_state_dict(torchs.state_dict())
        return ours, torchs

    def test_matches_torch(self, options: dict[str, Any]) -> None:
        ours, torchs = self.pair(options)
        x = torch.randn(2, 4, 6, 5)
        torch.testing.assert_close(results(ours, x), results(torchs, x))

    def test_state_dicts_are_interchangeable_with_torch(self, options: dict[str, Any]) -> None:
        ours, torchs = self.pair(options)
        torch.nn.init.normal_(ours.weight)  # type: ignore[arg-type]  # a module's attributes may be modules
        torchs.load_state_dict(ours.state_dict())
        assert list(ours.state_dict()) == list(torchs.state_dict())
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(torchs.state_dict()[name], value, rtol=0, atol=0)

    def test_copies_and_pickles(self, options: dict[str, Any]) -> None:
        ours, _ = self.pair(options)
        x = torch.randn(1, 4, 6, 5)
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            torch.testing.assert_close(other(x), ours(x), rtol=0, atol=0)


@pytest.mark.parametrize(("ours", "torchs", "options"), POOLINGS, ids=str)
def test_pooling_matches_torch(
    ours: type[torch.nn.Module], torchs: type[torch.nn.Module], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 6)
    torch.testing.assert_close(results(ours(**options), x), results(torchs(**options), x))


def test_modules_are_subclasses_of_torchs() -> None:
    """Code that finds modules by class, to initialise or fuse them, finds ours too."""
    assert isinstance(Conv2d(1, 1, 1), torch.nn.Conv2d)
    assert isinstance(MaxPool2d(1), torch.nn.MaxPool2d)
    assert isinstance(AvgPool2d(1), torch.nn.AvgPool2d)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_conv2d_rejects_other_padding_modes(mode: Any) -> None:
    with pytest.raises(ValueError, match=f"^Conv2d: padding_mode is '{mode}', but must be 'zeros'"):
        Conv2d(1, 1, 3, padding=1, padding_mode=mode)


def test_max_pool2d_rejects_return_indices() -> None:
    with pytest.raises(ValueError, match=r"^MaxPool2d: return_indices is True, but indices are not supported"):
        MaxPool2d(2, return_indices=True)


def test_channels_last_is_kept() -> None:
    network = torch.nn.Sequential(Conv2d(3, 4, 3, padding=1), MaxPool2d(2), Conv2d(4, 4, 1), AvgPool2d(2))
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types leave it out
    y = network(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
