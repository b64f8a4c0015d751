# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# Kernels have no Python types, and an operator returns Any.
"""What an operator may declare besides its kernels: how arguments are prepared, what it leaves to PyTorch, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.kernels import kernels, recorded_plans
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan

switch = False
native_calls: list[Any] = []


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    native_calls.clear()
    with ts.use("interpret"):
        yield


@triton.jit
def multiply_by_kernel(x_ptr, y_ptr, n_elements, FACTOR: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * FACTOR, mask=mask)


@kernels("test_multiplied")
def multiplied(x: Tensor, factor: int) -> Tensor:
    return torch.empty_like(x)


@multiplied.plan
def plan_multiplied(plan: Plan, x: Operand, factor: int) -> Operand:
    y = plan.empty_like(x)
    plan.launch(
        multiply_by_kernel, (1,), Config(), x_ptr=x, y_ptr=y, n_elements=x.shape[0], FACTOR=factor, BLOCK_SIZE=16
    )
    return y


@kernels("test_composed")
def composed(x: Tensor, factor: int) -> Tensor:
    return torch.empty_like(x)


@composed.composed
def compute(x: Tensor, factor: int) -> Tensor:
    return torch.mul(multiplied(x, factor), 2)


def prepare(x: Tensor, factor: Any = 1) -> tuple[Any, ...]:
    return x, (factor if isinstance(factor, int) else sum(factor)) * (10 if switch else 1)


def native(x: Tensor, factor: Any = 1) -> Tensor:
    native_calls.append(factor)
    return x * prepare(x, factor)[1]


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    context.factor = inputs[1]


def gradient(context: Any, dy: Tensor) -> Any:
    return multiplied(dy.contiguous(), context.factor), None


def no_negatives(x: Tensor, factor: Any = 1) -> None:
    if (x < 0).any():
        raise ValueError("scaled: x is negative")


@operator(
    "test_scaled", reference=native, forward=multiplied, save=save, gradient=gradient,
    prepare=prepare, options=Options(
        takes=lambda x, factor: factor != 7, switches=lambda: switch, check_values=no_negatives, autocasts=True
    ),
)  # fmt: skip
def scaled(x: Tensor, *, factor: Any = 1) -> Tensor:
    """Times a number, or the sum of several."""
    return x


@operator(
    "test_scaled_by_parts", reference=native, forward=composed, save=save,
    gradient=lambda context, dy: (composed(dy.contiguous(), context.factor), None),
)  # fmt: skip
def scaled_by_parts(x: Tensor, factor: int = 1) -> Tensor:
    """Times twice a number."""
    return x


X = torch.arange(5.0)


def test_kernels_get_what_the_arguments_are_made_into() -> None:
    for _ in range(2):
        torch.testing.assert_close(scaled(X, factor=(1, 2)), X * 3)
        torch.testing.assert_close(scaled(X, factor=[2, 2]), X * 4)
        torch.testing.assert_close(scaled(X, factor=2), X * 2)
    assert not native_calls


def test_so_does_the_gradient() -> None:
    x = X.clone().requires_grad_()
    scaled(x, factor=(1, 2)).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(X, 3))


def test_a_compiled_graph_has_them_too() -> None:
    x = X.clone().requires_grad_()
    y = torch.compile(scaled, fullgraph=True, backend="aot_eager")(x, factor=(1, 2))
    y.sum().backward()
    torch.testing.assert_close(y.detach(), X * 3)
    torch.testing.assert_close(x.grad, torch.full_like(X, 3))


def test_arguments_by_name_only_are_refused_by_place() -> None:
    with pytest.raises(TypeError, match="too many positional arguments"):
        scaled(X, 2)


def test_what_the_kernels_do_not_take_goes_to_pytorch() -> None:
    torch.testing.assert_close(scaled(X, factor=(3, 4)), X * 7)
    assert native_calls == [(3, 4)]


def test_a_switch_that_changes_is_noticed() -> None:
    global switch
    torch.testing.assert_close(scaled(X, factor=2), X * 2)
    switch = True
    try:
        torch.testing.assert_close(scaled(X, factor=2), X * 20)
    finally:
        switch = False
    torch.testing.assert_close(scaled(X, factor=2), X * 2)


def test_values_are_looked_at_where_debugging_is_on() -> None:
    scaled(-X)
    with ts.debug():
        scaled(X)
        for _ in range(2):
            with pytest.raises(ValueError, match="x is negative"):
                scaled(-X)
        with ts.debug(False):
            scaled(-X)
    scaled(-X)


def test_autocast_casts_as_for_a_matrix_product() -> None:
    x = X.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = scaled(x, factor=2)
        assert scaled(X.double()).dtype == torch.float64
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert scaled(X).dtype == torch.float32


def test_kernels_can_be_composed_of_others() -> None:
    x = X.clone().requires_grad_()
    y = scaled_by_parts(x, 3)
    y.sum().backward()
    torch.testing.assert_close(y.detach(), X * 6)
    torch.testing.assert_close(x.grad, torch.full_like(X, 6))
    torch.library.opcheck(torch.ops.tilesmith.test_composed, (X.clone().requires_grad_(), 3))


def test_what_they_are_composed_of_is_recorded() -> None:
    with recorded_plans() as plans:
        y = scaled_by_parts(X.to("meta"), 3)
    assert [plan.kernels for plan in plans] == ["test_multiplied"]
    assert y.shape == X.shape
