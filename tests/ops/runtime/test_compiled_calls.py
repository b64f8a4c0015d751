# mypy: disable-error-code="no-untyped-call"
# PyTorch types its rarer functions not at all.
"""Calls of our torch operators, as a compiled graph makes them: which of them PyTorch's dispatcher has to see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.ops.rms_norm.forward import forward as rms_norm


class Listener(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return function(*arguments, **(named or {}))


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Return the arguments of the calls that PyTorch's dispatcher sees."""
    calls: list[tuple[Any, ...]] = []
    dispatch = rms_norm._dispatch

    def noted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return dispatch(*arguments, **named)

    monkeypatch.setattr(rms_norm, "_dispatch", noted)
    with ts.use("interpret"):
        yield calls


def called(x: Tensor, weight: Tensor) -> Tensor:
    result: Tensor = torch.ops.tilesmith.rms_norm_forward.default(x, weight, 1e-6)
    return result


def test_call_without_a_gradient_skips_the_dispatcher(dispatched: list[tuple[Any, ...]]) -> None:
    x, weight = torch.randn(3, 5), torch.nn.Parameter(torch.randn(5))
    with torch.no_grad():
        y = called(x, weight)
        y_by_name = torch.ops.tilesmith.rms_norm_forward.default(x, weight, eps=1e-6)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (5,), weight, 1e-6))
    assert len(dispatched) == 1  # the one with a name
    assert torch.equal(y, y_by_name)


@pytest.mark.parametrize(
    "listening", [Listener, torch.profiler.profile, torch.enable_grad], ids=lambda one: one.__name__
)
def test_whoever_listens_sees_the_call(listening: Any, dispatched: list[tuple[Any, ...]]) -> None:
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    with torch.no_grad(), listening():
        y = called(x, weight)
    assert dispatched
    assert y.requires_grad == (listening is torch.enable_grad)


def test_dispatcher_resolves_lazy_negation_and_the_meta_device(dispatched: list[tuple[Any, ...]]) -> None:
    x, weight = torch.randn(3, 5), torch.randn(5)
    negated = torch.complex(torch.zeros_like(x), -x).conj().imag
    with torch.no_grad():
        torch.testing.assert_close(called(negated, weight), called(x, weight))
        assert called(x.to("meta"), weight.to("meta")).is_meta
    assert len(dispatched) == 2


def test_inductor_is_told_of_an_operator_when_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 takes minutes to find out by itself where the operator stands late in a deep graph."""
    lowering = pytest.importorskip("torch._inductor.graph").lowerings
    monkeypatch.delitem(lowering, rms_norm.dispatched, raising=False)
    with torch._subclasses.FakeTensorMode():
        torch.ops.tilesmith.rms_norm_forward.default(torch.empty(3, 5), torch.empty(5), 1e-6)
    assert rms_norm.dispatched in lowering


def test_operator_is_traced_where_a_later_inductor_has_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = pytest.importorskip("torch._inductor.graph")
    monkeypatch.delattr(graph, "make_fallback")
    monkeypatch.delitem(graph.lowerings, rms_norm.dispatched, raising=False)
    with torch._subclasses.FakeTensorMode():
        y = torch.ops.tilesmith.rms_norm_forward.default(torch.empty(3, 5), torch.empty(5), 1e-6)
    assert y.shape == (3, 5)
    assert rms_norm.dispatched not in graph.lowerings
