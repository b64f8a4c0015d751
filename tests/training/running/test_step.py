"""A training step: its phases, its micro-batches, its capture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tilesmith.training.running.gradient_guard import GradientError, GradientGuard
from tilesmith.training.running.step import EAGER_STEPS, CapturedStep, Step


class Squared(nn.Module):
    """Mean squared error of a linear model."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0, device=device))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x @ self.weight - y).square().mean()


def batches(count: int, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = [(torch.randn(6, 3, generator=generator), torch.randn(6, generator=generator)) for _ in range(count)]
    return [(x.to(device), y.to(device)) for x, y in made]


def step_of(model: nn.Module, accumulate: int = 1, device: str = "cpu") -> Step:
    optimizer = SGD(model.parameters(), lr=0.1)
    return Step(model, optimizer, GradientGuard(model.named_parameters()), batches(1, device)[0], accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [1, 2, 3, 6])
def test_step_is_gradient_descent_on_the_whole_batch(accumulate: int) -> None:
    model, expected = Squared(), Squared()
    step = step_of(model, accumulate)
    for batch in batches(3):
        step.load(batch)
        step()
        loss = expected(*batch)
        assert torch.allclose(step.loss, loss.detach())
        (gradient,) = torch.autograd.grad(loss, [expected.weight])
        expected.weight.data -= 0.1 * gradient
        assert torch.allclose(model.weight, expected.weight, atol=1e-6)


def test_phases_in_order_equal_the_whole_step() -> None:
    model, whole = Squared(), Squared()
    step, reference = step_of(model, 2), step_of(whole, 2)
    phases = step.phases()
    assert [phase.name for phase in phases] == ["forward", "backward", "forward", "backward", "optimizer"]
    for phase in phases:
        phase.run()
    reference()
    assert torch.equal(model.weight, whole.weight)


def test_gradients_are_exchanged_in_the_last_micro_batch_only() -> None:
    from contextlib import nullcontext

    seen: list[bool] = []
    model = Squared()
    step = Step(
        model,
        SGD(model.parameters(), lr=0.1),
        GradientGuard(model.named_parameters()),
        batches(1)[0],
        accumulate=3,
        synchronised=lambda last: (seen.append(last), nullcontext())[1],  # type: ignore[func-returns-value]
    )
    step()
    assert seen == [False, False, False, False, True, True]


@pytest.mark.gpu
@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_step_equals_the_eager_step(accumulate: int, update: bool) -> None:
    captured, eager = Squared("cuda"), Squared("cuda")
    step = CapturedStep(step_of(captured, accumulate, "cuda"), update=update)
    reference = step_of(eager, accumulate, "cuda")
    for batch in batches(EAGER_STEPS + 4, "cuda"):
        for one in (step, reference):
            one.load(batch)
            one()
        assert torch.equal(step.loss, reference.loss)
        assert torch.equal(captured.weight, eager.weight)
    for phase in step.phases():
        phase.run()
    reference()
    assert torch.equal(captured.weight, eager.weight)


@pytest.mark.gpu
def test_guard_of_captured_step_finds_gradients_that_are_not_finite() -> None:
    step = step_of(Squared("cuda"), 1, "cuda")
    captured = CapturedStep(step)
    for batch in batches(EAGER_STEPS + 2, "cuda"):
        captured.load(batch)
        captured()
    step._guard.require_finite()
    captured.load(tuple(torch.full_like(one, torch.inf) for one in batches(1, "cuda")[0]))
    captured()
    with pytest.raises(GradientError, match="weight is not finite"):
        step._guard.require_finite()
