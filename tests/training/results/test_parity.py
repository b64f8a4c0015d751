"""Parity of a model with ReLUs: which differences pass and which fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilesmith.training.results import parity
from tilesmith.training.results.parity import Parity, parities
from tilesmith.training.running.distributed import Place

UNITS, FEATURES, SAMPLES = 256, 4, 16384
CPU = Place(torch.device("cpu"))


class Hidden(nn.Module):
    """One hidden layer with `rectify` as its activation."""

    def __init__(self, rectify: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.expand = nn.Parameter(torch.empty(UNITS, FEATURES))
        self.rectify = rectify

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        predicted = self.rectify(x @ self.expand.t()).mean(1)
        return predicted if target is None else (predicted - target).square().mean()


def rounding_down(at: float) -> Callable[[Tensor], Tensor]:
    """Return a ReLU that zeroes inputs up to `at`: the output hardly changes, but the gradient of the unit jumps."""
    return lambda x: torch.relu(x) * (x.abs() > at)


def without_last(x: Tensor) -> Tensor:
    return torch.cat((torch.relu(x[:, :-1]), torch.relu(x[:, -1:]).detach()), dim=1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "v1": torch.relu,
    "a few kinks": rounding_down(1.5e-6),
    "more kinks": rounding_down(1e-4),
    "many kinks": rounding_down(1e-2),
    "a unit without gradient": without_last,
}


class Task:
    """A stand-in for a task with a version for each activation."""

    def __init__(self, rectified: bool) -> None:
        self.rectified = rectified

    def version(self, name: str) -> Any:
        return SimpleNamespace(name=name)

    def model(self, version: Any) -> nn.Module:
        return Hidden(ACTIVATIONS[version.name])

    def batches(self, steps: range, batch_size: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, SAMPLES, FEATURES, generator=generator)
        return x, torch.randn(1, SAMPLES, generator=generator)


_draw = parity._drawn


@cache
def drawn(draw: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return v1 with one draw of rounding errors: the most expensive part, and the same for both tasks."""
    task: Any = Task(rectified=True)
    return _draw(task, draw, dtype, CPU, tuple(tensor[0] for tensor in task.batches(range(1), 1)))


@cache
def judged(rectified: bool = True) -> dict[str, Parity]:
    """Return the parity of every version: together, since all are compared with the same draws of v1."""
    task: Any = Task(rectified)
    names = [*ACTIVATIONS] if rectified else ["v1", "a few kinks"]
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(parity, "_drawn", lambda task, draw, dtype, place, batch: drawn(draw, dtype))
        return dict(zip(names, parities(task, names, torch.float32, CPU, 1), strict=True))


def test_few_units_beyond_a_kink_pass() -> None:
    assert judged()["v1"].passed
    assert judged()["a few kinks"].passed


def test_kinks_fail_in_a_model_without_relu() -> None:
    found = judged(rectified=False)["a few kinks"]
    assert not found.passed
    assert "of the gradient of expand has an error of" in found.difference or "norm" in found.difference


@pytest.mark.parametrize("version", ["more kinks", "many kinks"])
def test_more_kinks_than_rounding_explains_fail(version: str) -> None:
    assert not judged()[version].passed


def test_unit_without_gradient_fails() -> None:
    found = judged()["a unit without gradient"]
    assert not found.passed
    assert "the gradient of expand" in found.difference
