# mypy: disable-error-code="no-untyped-call"
# PyTorch types Tensor.backward not at all.
"""Loss modules: results, gradients and state dicts of torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.nn.losses import CrossEntropyLoss, LinearCrossEntropyLoss


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def with_gradient(module: torch.nn.Module, input: Tensor, target: Tensor) -> list[Tensor]:
    leaf = input.detach().clone().requires_grad_()
    loss = module(leaf, target)
    loss.backward(torch.full_like(loss, 1.7))
    assert leaf.grad is not None
    return [loss.detach(), leaf.grad, *(one.grad for one in module.parameters() if one.grad is not None)]


class TestCrossEntropyLoss:
    @pytest.mark.parametrize("shape", [(5, 7), (7,), (2, 7, 3), (2, 7, 3, 4)], ids=str)
    @pytest.mark.parametrize(
        "options",
        [{}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 3}, {"label_smoothing": 0.2}],
        ids=str,
    )
    def test_matches_torch(self, shape: tuple[int, ...], options: dict[str, Any]) -> None:
        classes_at = min(1, len(shape) - 1)
        input, target = torch.randn(shape), torch.randint(7, shape[:classes_at] + shape[classes_at + 1 :])
        ours = with_gradient(CrossEntropyLoss(**options), input, target)
        torchs = with_gradient(torch.nn.CrossEntropyLoss(**options), input, target)
        torch.testing.assert_close(ours, torchs, equal_nan=True)

    def test_takes_the_deprecated_reduction_arguments(self) -> None:
        with pytest.warns(UserWarning, match="size_average"):
            assert CrossEntropyLoss(size_average=False).reduction == "sum"

    def test_rejects_class_weights(self) -> None:
        with pytest.raises(ValueError, match=r"^CrossEntropyLoss: weight is given"):
            CrossEntropyLoss(torch.ones(7))

    def test_rejects_probabilities_as_targets(self) -> None:
        with pytest.raises(TypeError, match="target has dtype float32, but must hold classes as int64"):
            CrossEntropyLoss()(torch.randn(5, 7), torch.rand(5, 7))

    def test_state_dicts_are_interchangeable(self) -> None:
        CrossEntropyLoss().load_state_dict(torch.nn.CrossEntropyLoss().state_dict())
        torch.nn.CrossEntropyLoss().load_state_dict(CrossEntropyLoss().state_dict())


class LinearAndLoss(torch.nn.Module):
    """The reference of LinearCrossEntropyLoss."""

    def __init__(self, bias: bool, options: dict[str, Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 11, bias=bias)
        self.loss = torch.nn.CrossEntropyLoss(**options)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return self.loss(self.linear(input), target)


class TestLinearCrossEntropyLoss:
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize(
        "options",
        [{}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 3, "label_smoothing": 0.2}],
        ids=str,
    )
    def test_matches_linear_and_cross_entropy(self, bias: bool, options: dict[str, Any]) -> None:
        ours = LinearCrossEntropyLoss(6, 11, bias=bias, **options)
        apart = LinearAndLoss(bias, options)
        apart.load_state_dict(ours.state_dict())
        input, target = torch.randn(9, 6), torch.randint(11, (9,))
        torch.testing.assert_close(with_gradient(ours, input, target), with_gradient(apart, input, target))

    def test_takes_any_batch_shape(self) -> None:
        module = LinearCrossEntropyLoss(6, 11)
        input, target = torch.randn(2, 3, 6), torch.randint(11, (2, 3))
        torch.testing.assert_close(module(input, target), module(input.view(6, 6), target.view(6)))

    @pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyLoss"), reason="this PyTorch has none of its own")
    @pytest.mark.parametrize("bias", [False, True])
    def test_loads_torchs_state_dict(self, bias: bool) -> None:
        torchs = torch.nn.LinearCrossEntropyLoss(6, 11, bias=bias)
        ours = LinearCrossEntropyLoss(6, 11, bias=bias)
        ours.load_state_dict(torchs.state_dict())
        input, target = torch.randn(9, 6), torch.randint(11, (9,))
        torch.testing.assert_close(ours(input, target), torchs(input, target))
        torchs.load_state_dict(ours.state_dict())

    def test_repr_shows_the_options(self) -> None:
        assert "ignore_index=5" in repr(LinearCrossEntropyLoss(6, 11, ignore_index=5))
