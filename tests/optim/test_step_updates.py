# mypy: disable-error-code="no-untyped-call"
# PyTorch types neither Tensor.backward nor torch.compile'd functions.
"""Which parameters our kernels update, which torch updates, and that changes between two steps are noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from adamw_steps import (
    ROUNDINGS,
    SHAPES,
    assert_same,
    assert_same_each,
    give_gradients,
    parameters,
    step,
    with_gaps,
)
from torch import Tensor
from torch.nn import Parameter

import tilesmith as ts
from tilesmith.ops.runtime.plan import Plan
from tilesmith.optim import AdamW, step_updates
from tilesmith.optim.adamw_kernels import MOST_TENSORS


def test_dense_parameters_of_any_stride_order_are_updated(runs: list[Plan]) -> None:
    def some() -> list[Parameter]:
        plain, images = parameters(shapes=((33, 65), (4, 3, 5, 5)))
        return [Parameter(plain.detach().t()), Parameter(images.detach().contiguous(memory_format=torch.channels_last))]

    ours, theirs = AdamW(some()), torch.optim.AdamW(some())
    assert not any(one.is_contiguous() for one in ours.param_groups[0]["params"])
    step(ours, 3)
    step(theirs, 3)
    assert_same(ours, theirs, 4)
    assert len(runs) == 3


@pytest.mark.parametrize(
    ("some", "options"),
    [
        pytest.param(parameters, {"amsgrad": True}, id="amsgrad"),
        pytest.param(lambda: parameters(torch.float64), {}, id="double precision"),
        pytest.param(lambda: parameters(torch.complex64), {}, id="complex"),
        pytest.param(lambda: parameters(shapes=((0,), (0, 3))), {}, id="no elements"),
        pytest.param(with_gaps, {}, id="gaps"),
    ],
)
def test_torch_updates_unsupported_parameters(some: Any, options: dict[str, Any], runs: list[Plan]) -> None:
    ours, theirs = AdamW(some(), **options), torch.optim.AdamW(some(), **options)
    step(ours, 3)
    step(theirs, 3)
    assert not runs
    for one, wanted in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        assert torch.equal(one, wanted)
        assert one.numel() == 0 or not torch.equal(one, parameters(one.dtype)[0])


@pytest.mark.parametrize("mode", ["auto", "torch"])
def test_torch_updates_on_the_cpu_and_in_torch_mode(mode: Any, runs: list[Plan]) -> None:
    ours = AdamW(parameters())
    step(ours, 1)
    with ts.use(mode):
        step(ours, 1, first=1)
    assert len(runs) == 1
    assert ours.state[ours.param_groups[0]["params"][0]]["step"] == 2


def test_group_may_be_updated_by_both(runs: list[Plan]) -> None:
    def some() -> list[Parameter]:
        return [*parameters()[:2], *parameters(torch.float64)[2:4], *with_gaps(), *parameters(torch.float32)[5:]]

    ours, theirs = AdamW(some()), torch.optim.AdamW(some())
    step(ours, 4)
    step(theirs, 4)
    assert_same_each(ours, theirs)
    assert len(runs) == 4


def test_gradient_of_another_layout_is_left_to_torch(runs: list[Plan]) -> None:
    ours, theirs = AdamW(parameters(shapes=((33, 65),))), torch.optim.AdamW(parameters(shapes=((33, 65),)))
    for optimizer in (ours, theirs):
        (one,) = optimizer.param_groups[0]["params"]
        step(optimizer, 2)
        one.grad = torch.randn(65, 33, generator=torch.Generator().manual_seed(7)).t()
        optimizer.step()
        step(optimizer, 1, first=3)
    assert len(runs) == 3
    assert_same(ours, theirs, ROUNDINGS[torch.float32])


def test_lazily_negated_gradient_is_left_to_torch(runs: list[Plan]) -> None:
    (one,), (other,) = parameters(shapes=((9,),)), parameters(shapes=((9,),))
    one.grad, other.grad = torch._neg_view(torch.ones(9)), -torch.ones(9)
    AdamW([one]).step()
    torch.optim.AdamW([other]).step()
    assert torch.equal(one, other)
    assert not runs


def test_rejects_sparse_gradient_like_torch() -> None:
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        AdamW(embedding.parameters()).step()


def test_tensor_subclasses_are_left_to_torch(runs: list[Plan]) -> None:
    class Marked(Tensor):
        pass

    one = torch.randn(4, 4).as_subclass(Marked).requires_grad_()
    one.grad = torch.ones(4, 4).as_subclass(Marked)
    AdamW([one]).step()
    assert not runs


def test_grad_scaler_is_left_to_torch(runs: list[Plan]) -> None:
    ours = AdamW(parameters(), fused=True)
    give_gradients(ours.param_groups[0]["params"], 0)
    ours.found_inf = torch.ones(())  # type: ignore[attr-defined]  # as GradScaler sets it: the step is to be left out
    ours.step()
    assert not runs
    assert all(torch.equal(*pair) for pair in zip(ours.param_groups[0]["params"], parameters(), strict=True))


def exchange_data(optimizer: Any, one: Parameter) -> None:
    one.data = one.data * 2


def exchange_moment(optimizer: Any, one: Parameter) -> None:
    optimizer.state[one]["exp_avg"] = optimizer.state[one]["exp_avg"] + 1


def exchange_data_of_moment(optimizer: Any, one: Parameter) -> None:
    optimizer.state[one]["exp_avg_sq"].data = optimizer.state[one]["exp_avg_sq"] + 1


def exchange_count(optimizer: Any, one: Parameter) -> None:
    optimizer.state[one]["step"] = torch.tensor(50.0)


def exchange_state(optimizer: Any, one: Parameter) -> None:
    optimizer.state[one] = {name: value.clone() * 2 for name, value in optimizer.state[one].items()}


def exchange_parameter(optimizer: Any, one: Parameter) -> None:
    optimizer.param_groups[0]["params"][1] = parameters(shapes=((65, 3),))[0]


def add_parameters(optimizer: Any, one: Parameter) -> None:
    optimizer.add_param_group({"params": parameters(shapes=((40,),)), "lr": 1e-2})


CHANGES = (
    exchange_data, exchange_moment, exchange_data_of_moment, exchange_count, exchange_state, exchange_parameter,
    add_parameters,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("fused", [None, True], ids=["on the host", "on the device"])
def test_changes_between_two_steps_are_noticed(change: Any, fused: bool | None) -> None:
    ours, theirs = (kind(parameters(shapes=SHAPES[:3]), fused=fused) for kind in (AdamW, torch.optim.AdamW))
    for optimizer in (ours, theirs):
        step(optimizer, 2)
        change(optimizer, optimizer.param_groups[0]["params"][1])
        step(optimizer, 2, first=2)
    assert_same(ours, theirs, ROUNDINGS[torch.float32])


def test_many_tensors_take_several_launches(runs: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_TENSORS >= 16
    monkeypatch.setattr(step_updates, "MOST_TENSORS", 16)
    shapes = [(number,) for number in range(1, 20)]
    ours, theirs = AdamW(parameters(shapes=shapes)), torch.optim.AdamW(parameters(shapes=shapes))
    step(ours, 2)
    step(theirs, 2)
    assert_same(ours, theirs, 4)
    assert len(runs) == 4
