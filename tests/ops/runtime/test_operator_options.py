# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
# Kernels have no Python types.
"""Options of an operator: prepared arguments, calls for PyTorch, switches, autocast, and more."""

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
from tilesmith.ops.runtime.options import Alternative, Options
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
    """Multiply by a number, or by the sum of several."""
    return x


@operator(
    "test_scaled_by_parts", reference=native, forward=composed, save=save,
    gradient=lambda context, dy: (composed(dy.contiguous(), context.factor), None),
)  # fmt: skip
def scaled_by_parts(x: Tensor, factor: int = 1) -> Tensor:
    """Multiply by twice a number."""
    return x


X = torch.arange(5.0)


def test_kernels_get_the_prepared_arguments() -> None:
    for _ in range(2):
        torch.testing.assert_close(scaled(X, factor=(1, 2)), X * 3)
        torch.testing.assert_close(scaled(X, factor=[2, 2]), X * 4)
        torch.testing.assert_close(scaled(X, factor=2), X * 2)
    assert not native_calls


def test_gradient_of_prepared_arguments_is_right() -> None:
    x = X.clone().requires_grad_()
    scaled(x, factor=(1, 2)).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(X, 3))


def test_compiled_graph_has_the_prepared_arguments() -> None:
    x = X.clone().requires_grad_()
    y = torch.compile(scaled, fullgraph=True, backend="aot_eager")(x, factor=(1, 2))
    y.sum().backward()
    torch.testing.assert_close(y.detach(), X * 3)
    torch.testing.assert_close(x.grad, torch.full_like(X, 3))


def test_keyword_only_argument_by_position_raises() -> None:
    with pytest.raises(TypeError, match="too many positional arguments"):
        scaled(X, 2)  # type: ignore[call-arg]  # the mistake


def test_calls_that_kernels_do_not_take_go_to_pytorch() -> None:
    torch.testing.assert_close(scaled(X, factor=(3, 4)), X * 7)
    assert native_calls == [(3, 4)]


def test_changed_switch_is_noticed() -> None:
    global switch
    torch.testing.assert_close(scaled(X, factor=2), X * 2)
    switch = True
    try:
        torch.testing.assert_close(scaled(X, factor=2), X * 20)
    finally:
        switch = False
    torch.testing.assert_close(scaled(X, factor=2), X * 2)


def test_debug_checks_values() -> None:
    scaled(-X)
    with ts.debug():
        scaled(X)
        for _ in range(2):
            with pytest.raises(ValueError, match="x is negative"):
                scaled(-X)
        with ts.debug(False):
            scaled(-X)
    scaled(-X)


def test_autocast_casts_like_a_matrix_product() -> None:
    x = X.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = scaled(x, factor=2)
        assert scaled(X.double()).dtype == torch.float64
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert scaled(X).dtype == torch.float32


def test_composed_kernels_compute() -> None:
    x = X.clone().requires_grad_()
    y = scaled_by_parts(x, 3)
    y.sum().backward()
    torch.testing.assert_close(y.detach(), X * 6)
    torch.testing.assert_close(x.grad, torch.full_like(X, 6))
    torch.library.opcheck(torch.ops.tilesmith.test_composed, (X.clone().requires_grad_(), 3))


def test_parts_of_composed_kernels_are_recorded() -> None:
    with recorded_plans() as plans:
        y = scaled_by_parts(X.to("meta"), 3)
    assert [plan.kernels for plan in plans] == ["test_multiplied"]
    assert y.shape == X.shape


@kernels("test_with_mask")
def with_mask(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@with_mask.composed
def compute_with_mask(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    return multiplied(x, factor), multiplied(x, 0)


def save_with_mask(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    context.factor = inputs[1]
    context.is_private = getattr(context, "outputs_are_private", False)
    context.mark_non_differentiable(output[1])


def gradient_with_mask(context: Any, dy: Tensor, *_: Any) -> Any:
    privacy.append(context.is_private)
    return multiplied(dy.contiguous(), context.factor), None


@kernels("test_doubled")
def doubled(x: Tensor, factor: int) -> Tensor:
    return torch.empty_like(x)


@doubled.composed
def compute_doubled(x: Tensor, factor: int) -> Tensor:
    return multiplied(x, 2 * factor)


privacy: list[bool] = []
BIG = Alternative(
    when=lambda x, factor, *_: factor > 100, forward=doubled, save=save,
    gradient=lambda context, dy: (doubled(dy.contiguous(), context.factor), None),
    prepare=lambda x, factor, shift, residual: (x, factor),
)  # fmt: skip


@operator(
    "test_first", reference=lambda x, factor, shift, residual: x * factor, forward=with_mask, save=save_with_mask,
    gradient=gradient_with_mask, prepare=lambda x, factor, shift, residual: (x, factor),
    options=Options(
        returns="first", private_outputs=True, finish={"shift": torch.add}, residual="separate", alternatives=(BIG,),
        complete=lambda x, factor, shift, residual: (x, 3 if factor == 0 else factor, shift, residual),
    ),
)  # fmt: skip
def first(x: Tensor, factor: int = 0, shift: Tensor | None = None, *, residual: bool = False) -> Tensor:
    """Multiply by a number; zero stands for three."""
    return x


def test_returns_first_hides_the_other_outputs() -> None:
    torch.testing.assert_close(first(X, 2), X * 2)


def test_private_outputs_are_known_to_the_backward() -> None:
    x = X.clone().requires_grad_()
    privacy.clear()
    for _ in range(2):
        first(x, 2).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(X, 4))
    assert privacy == [True, True]


def test_complete_fills_in_arguments() -> None:
    torch.testing.assert_close(first(X), X * 3)


def test_finish_is_applied_where_its_argument_is_given() -> None:
    for _ in range(2):
        torch.testing.assert_close(first(X, 2, X), X * 3)


def test_separate_residual_is_added() -> None:
    torch.testing.assert_close(first(X, 2, residual=True), X * 3)
    torch.testing.assert_close(first(X, 2, X, residual=True), X * 4)


def test_alternative_computes_where_it_applies() -> None:
    with recorded_plans() as plans:
        first(X.to("meta"), 101)
    assert [plan.kernels for plan in plans] == ["test_multiplied"]  # composed of one launch, not of two
    torch.testing.assert_close(first(X, 101), X * 202)


def test_compiled_graph_returns_the_finished_result() -> None:
    compiled = torch.compile(lambda x: first(x, 2, x, residual=True), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), X * 4)
