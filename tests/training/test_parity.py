"""What parity allows a model that rectifies, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilesmith.training.distributed import Place
from tilesmith.training.parity import Parity, parities

UNITS, FEATURES, SAMPLES = 256, 4, 16384


class Hidden(nn.Module):
    """One hidden layer. `rectify` is what a version computes it with."""

    def __init__(self, rectify: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.expand = nn.Parameter(torch.empty(UNITS, FEATURES))
        self.rectify = rectify

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        predicted = self.rectify(x @ self.expand.t()).mean(1)
        return predicted if target is None else (predicted - target).square().mean()


class Task:
    """A stand-in for a task, whose v2 rectifies as is to be tried."""

    def __init__(self, rectify: Callable[[Tensor], Tensor], rectified: bool) -> None:
        self._rectify, self.rectified = rectify, rectified

    def version(self, name: str) -> Any:
        return SimpleNamespace(name=name)

    def model(self, version: Any) -> nn.Module:
        return Hidden(torch.relu if version.name == "v1" else self._rectify)

    def batches(self, steps: range, batch_size: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, SAMPLES, FEATURES, generator=generator)
        return x, torch.randn(1, SAMPLES, generator=generator)


def judged(rectify: Callable[[Tensor], Tensor], rectified: bool = True) -> Parity:
    task: Any = Task(rectify, rectified)
    (parity,) = parities(task, ["v2"], torch.float32, Place(torch.device("cpu")), 1)
    return parity


def rounding_down(at: float) -> Callable[[Tensor], Tensor]:
    """Inputs so small count as nothing: the output hardly changes, the gradient of their unit jumps."""
    return lambda x: torch.relu(x) * (x.abs() > at)


def test_a_few_units_on_the_other_side_of_a_kink_are_the_same_model() -> None:
    assert judged(torch.relu).passed
    assert judged(rounding_down(1.5e-6)).passed


def test_where_nothing_rectifies_there_are_no_kinks() -> None:
    parity = judged(rounding_down(1.5e-6), rectified=False)
    assert not parity.passed
    assert "of the gradient of expand is off by" in parity.difference or "norm" in parity.difference


@pytest.mark.parametrize("at", [1e-4, 1e-2])
def test_more_units_than_rounding_moves_are_another_model(at: float) -> None:
    assert not judged(rounding_down(at)).passed


def test_a_unit_that_is_cut_off_is_no_kink() -> None:
    def without_last(x: Tensor) -> Tensor:
        return torch.cat((torch.relu(x[:, :-1]), torch.relu(x[:, -1:]).detach()), dim=1)

    parity = judged(without_last)
    assert not parity.passed
    assert "the gradient of expand" in parity.difference
