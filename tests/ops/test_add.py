"""Addition beyond the tests that every operator has: broadcasting, promotion of dtypes, any strides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward
from layouts import assert_same_in_this_layout, views

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.kernels import recorded_plans

add, reference = SPECS["add"].op, SPECS["add"].reference


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


@pytest.mark.parametrize("mode", ["auto", "interpret"])
def test_add_rejects_shapes_that_do_not_broadcast(mode: Any) -> None:
    words = r"^add: y has shape \(4,\), which does not broadcast with x of shape \(2, 3\)"
    with ts.use(mode), pytest.raises(ValueError, match=words):
        add(torch.ones(2, 3), torch.ones(4))


@pytest.mark.parametrize(
    ("x_shape", "y_shape"),
    [((5, 24), (24,)), ((24,), (5, 24)), ((5, 1), (1, 24)), ((), (5, 24)), ((5, 24), ()), ((), ()),
     ((2, 1, 3, 1), (4, 1, 5)), ((1, 1), (3,)), ((2, 3, 4, 5, 6), (4, 1, 6))],
    ids=str,
)  # fmt: skip
def test_add_broadcasts_as_pytorch_does(x_shape: tuple[int, ...], y_shape: tuple[int, ...]) -> None:
    inputs = {"x": torch.randn(x_shape), "y": torch.randn(y_shape)}
    assert_same(forward_and_backward(add, inputs), forward_and_backward(torch.add, inputs))


@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("y_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_add_promotes_dtypes_as_pytorch_does(x_dtype: torch.dtype, y_dtype: torch.dtype) -> None:
    inputs = {"x": torch.randn(5, 24).to(x_dtype), "y": torch.randn(5, 24).to(y_dtype)}
    assert_same(forward_and_backward(add, inputs), forward_and_backward(torch.add, inputs))


def test_add_sums_a_low_precision_gradient_in_its_own_dtype() -> None:
    inputs = {"x": torch.randn(64, 8), "y": torch.randn(8).bfloat16()}
    assert_same(forward_and_backward(add, inputs), forward_and_backward(torch.add, inputs))


def test_add_backward_without_broadcasting_launches_nothing() -> None:
    x, y = (torch.empty(64, 8, device="meta", requires_grad=True) for _ in range(2))
    with recorded_plans() as plans:
        add(x, y).sum().backward()
    assert [launch.kernel.__name__ for plan in plans for launch in plan.launches] == ["add_kernel"]


@pytest.mark.parametrize("name", views())
def test_add_takes_any_strides(name: str) -> None:
    x = views()[name]
    assert_same_in_this_layout("add", {"x": x, "y": torch.randn(x.shape)})
    assert_same_in_this_layout("add", {"x": torch.randn(x.shape), "y": x})


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0), (0,), (3, 0, 5), (2, 3, 0)], ids=str)
def test_add_takes_empty_tensors(shape: tuple[int, ...]) -> None:
    inputs = {"x": torch.randn(shape), "y": torch.randn(shape)}
    assert_same(forward_and_backward(add, inputs), forward_and_backward(reference, inputs))


def test_add_broadcasts_a_row_over_an_empty_tensor() -> None:
    found = forward_and_backward(add, {"x": torch.randn(0, 4), "y": torch.randn(1, 4)})
    assert found["output 0"].shape == (0, 4)
    torch.testing.assert_close(found["gradient of y"], torch.zeros(1, 4), rtol=0, atol=0)


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_dtype_of_the_result_is_that_of_torch(route: Any) -> None:
    """Tensors without dimensions and numbers do not promote."""
    for x_dtype, y_dtype in product(DTYPES, repeat=2):
        for x_shape, y_shape in (((3,), ()), ((), (3,)), ((), ()), ((2, 3), (3,))):
            x, y = torch.randn(x_shape, dtype=x_dtype), torch.randn(y_shape, dtype=y_dtype)
            x.requires_grad_(), y.requires_grad_()
            with ts.use(route):
                found = ts.ops.add(x, y)
            assert found.dtype == torch.result_type(x, y), (x_dtype, x_shape, y_dtype, y_shape)
            torch.testing.assert_close(found, x + y)
            found.sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
            assert x.grad is not None
            assert x.grad.dtype == x_dtype
            assert y.grad is not None
            assert y.grad.dtype == y_dtype


@pytest.mark.parametrize("route", ["interpret", "torch"])
@pytest.mark.parametrize("number", [2, 0.1, float("inf")])
def test_adds_a_number(number: float, route: Any) -> None:
    for dtype in DTYPES:
        for shape in ((3,), ()):
            x = torch.randn(shape, dtype=dtype)
            with ts.use(route):
                found = ts.ops.add(x, number)
            assert found.dtype == dtype
            torch.testing.assert_close(found, x + number)
