# mypy: disable-error-code="no-untyped-call"
# PyTorch types neither Tensor.backward nor torch.compile'd functions.
"""AdamW against torch's own: same results, same state, same behaviour as an optimiser."""

from __future__ import annotations

import copy
import io
import weakref
from typing import Any

import pytest
import torch
from adamw_steps import HALF, ROUNDINGS, assert_same, assert_same_each, give_gradients, parameters, step
from torch.nn import Parameter

from tilesmith.ops.runtime.plan import Plan
from tilesmith.optim import AdamW


@pytest.mark.parametrize(
    ("dtype", "counted"),
    [
        (torch.float32, "on the host"),
        (torch.float32, "on the device"),
        (torch.bfloat16, "on the device"),
        (torch.float16, "on the host"),
    ],
    ids=str,
)
def test_four_steps_match_torch(dtype: torch.dtype, counted: str, runs: list[Plan]) -> None:
    fused = counted == "on the device"
    ours = AdamW(parameters(dtype), lr=1e-2, weight_decay=0.1, fused=fused or None)
    # torch's step without `fused` rounds every intermediate result, so bf16 and fp16 compare with the fused step.
    theirs = torch.optim.AdamW(parameters(dtype), lr=1e-2, weight_decay=0.1, fused=fused or dtype in HALF)
    step(ours, 4)
    step(theirs, 4)
    assert_same(ours, theirs, ROUNDINGS[dtype])
    assert len(runs) == 4  # one plan per step for all tensors
    assert [len(plan.launches) for plan in runs] == [2] * 4


def test_capturable_counts_on_the_device() -> None:
    ours, theirs = AdamW(parameters(), capturable=True), torch.optim.AdamW(parameters(), fused=True)
    step(ours, 3)
    step(theirs, 3)
    assert_same(ours, theirs, 4)


def groups_of(ones: list[Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": ones[:2], "lr": 1e-2, "weight_decay": 0.3},
        {"params": ones[2:3], "lr": 3e-3, "betas": (0.5, 0.9), "eps": 1e-3, "maximize": True},
        {"params": ones[3:], "weight_decay": 0.0, "betas": (0.0, 0.99)},
    ]


def test_groups_keep_their_own_settings(runs: list[Plan]) -> None:
    ours, theirs = AdamW(groups_of(parameters())), torch.optim.AdamW(groups_of(parameters()))
    step(ours, 4)
    step(theirs, 4)
    assert_same(ours, theirs, ROUNDINGS[torch.float32])
    assert len(runs) == 4


@pytest.mark.parametrize("fused", [None, True], ids=["on the host", "on the device"])
def test_parameters_without_gradient_stay_unchanged(fused: bool | None) -> None:
    ours, theirs = (kind(parameters(), fused=fused) for kind in (AdamW, torch.optim.AdamW))
    for optimizer in (ours, theirs):
        ones = optimizer.param_groups[0]["params"]
        for number, absent in enumerate(([0, 3], [0, 3], [3], [1, 2], [])):  # the same, one fewer, others, none
            give_gradients(ones, number)
            for place in absent:
                ones[place].grad = None
            optimizer.step()
            if number == 1:
                assert not optimizer.state[ones[0]]
    assert_same(ours, theirs, ROUNDINGS[torch.float32])


@pytest.mark.parametrize("steps", [1, 2, 7, 1000, 10**6])
def test_bias_corrections_are_exact_at_any_step(steps: int) -> None:
    """With a learning rate of 1 and zero parameters, the result is the update itself, to the last digit."""
    one, gradient = Parameter(torch.zeros(40)), torch.linspace(-3, 2, 40)
    ours = AdamW([one], lr=1.0, weight_decay=0.0)
    ours.state[one] = {"step": torch.tensor(steps - 1.0), "exp_avg": torch.zeros(40), "exp_avg_sq": torch.zeros(40)}
    one.grad = gradient.clone()
    ours.step()
    m, v = (1 - 0.9) * gradient.double(), (1 - 0.999) * gradient.double() ** 2
    wanted = -m / (1 - 0.9**steps) / ((v / (1 - 0.999**steps)).sqrt() + 1e-8)
    torch.testing.assert_close(one.detach().double(), wanted, rtol=4 * torch.finfo(torch.float32).eps, atol=0)


@pytest.mark.parametrize(
    ("fused", "kind_of_rate"),
    [(None, float), (None, torch.tensor), (True, torch.tensor)],
    ids=["on the host-number", "on the host-tensor", "on the device-tensor"],
)
def test_scheduler_changes_the_learning_rate(fused: bool | None, kind_of_rate: Any, runs: list[Plan]) -> None:
    ours, theirs = (kind(parameters(), lr=kind_of_rate(1e-2), fused=fused) for kind in (AdamW, torch.optim.AdamW))
    for optimizer in (ours, theirs):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        for number in range(3):
            step(optimizer, 1, number)
            scheduler.step()
    assert_same(ours, theirs, ROUNDINGS[torch.float32])
    assert len(runs) == 3


def test_state_dicts_are_interchangeable_with_torch() -> None:
    alone = torch.optim.AdamW(parameters(), lr=1e-2)
    step(alone, 9)
    first = torch.optim.AdamW(parameters(), lr=1e-2)
    step(first, 3)
    ones = first.param_groups[0]["params"]
    second = AdamW(ones, lr=1.0)
    step(second, 1, first=50)  # the remembered groups are out of date
    for one, other in zip(ones, parameters(), strict=True):
        one.data = other.data
    again = torch.optim.AdamW(ones, lr=1e-2)
    step(again, 3)
    second.load_state_dict(again.state_dict())
    assert second.state_dict()["param_groups"] == again.state_dict()["param_groups"]
    step(second, 3, first=3)
    third = torch.optim.AdamW(ones, lr=1.0)
    third.load_state_dict(second.state_dict())
    step(third, 3, first=6)
    assert_same(third, alone, ROUNDINGS[torch.float32])


def test_copied_and_pickled_optimisers_continue() -> None:
    theirs = torch.optim.AdamW(parameters())
    step(theirs, 4)
    ours = AdamW(parameters())
    step(ours, 2)
    copied = copy.deepcopy(ours)
    step(copied, 2, first=2)
    assert_same(copied, theirs, ROUNDINGS[torch.float32])
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    step(loaded, 2, first=2)
    assert_same(loaded, theirs, ROUNDINGS[torch.float32])


def test_closures_and_hooks_are_called_once() -> None:
    torch.optim.AdamW(parameters())  # this makes torch wrap the step of its class with hooks
    ours = AdamW(parameters())
    calls: list[str] = []
    ours.register_step_pre_hook(lambda *_: calls.append("before"))
    ours.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> float:
        assert torch.is_grad_enabled()
        calls.append("closure")
        give_gradients(ours.param_groups[0]["params"], 0)
        return 3.0

    assert ours.step(closure) == 3.0
    assert calls == ["before", "closure", "after"]


def test_gradients_are_not_kept() -> None:
    ours = AdamW(parameters())
    step(ours, 2)
    last = weakref.ref(ours.param_groups[0]["params"][0].grad)
    ours.zero_grad(set_to_none=True)
    assert last() is None


def test_backward_after_a_step_raises_for_saved_parameters() -> None:
    (one,) = parameters(shapes=((5,),))
    kept = (one * one).sum()
    one.grad = torch.ones(5)
    AdamW([one]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_failed_step_does_not_affect_the_next() -> None:
    ones = parameters()
    ours = AdamW([{"params": ones[:3]}, {"params": ones[3:]}])
    give_gradients(ones, 0)
    ones[4].grad = torch.ones(1).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        ours.step()
    before = [one.detach().clone() for one in ones]
    ours.zero_grad(set_to_none=True)
    ours.step()
    assert all(torch.equal(one, was) for one, was in zip(ones, before, strict=True))


def test_compiled_step_is_torchs() -> None:
    ours, theirs = AdamW(parameters()), torch.optim.AdamW(parameters())
    compiled = torch.compile(ours.step, backend="eager")
    for number in range(3):
        give_gradients(ours.param_groups[0]["params"], number)
        compiled()
    step(theirs, 3)
    assert_same_each(ours, theirs)
