"""RMSNorm beyond the tests that every operator has: errors, an optional weight, mixed dtypes, any strides.

`test_norm_forms.py` tests the forms of its kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward
from layouts import assert_same_in_this_layout, views
from saved_tensors import with_saved_addresses

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.spec import Inputs

rms_norm, reference = SPECS["rms_norm"].op, SPECS["rms_norm"].reference
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"weight": torch.ones(7)}, ValueError, "weight has 7 elements, but x has 8 columns"),
        ({"weight": torch.ones(1, 8)}, ValueError, r"weight has shape \(1, 8\), but must be a vector of 8 elements"),
        ({"weight": torch.tensor(1.0)}, ValueError, r"weight has shape \(\), but must be a vector"),
        ({"x": torch.tensor(1.0)}, ValueError, r"x has 0 dimensions \(shape \(\)\), but must have at least 1"),
        ({"eps": -1e-6}, ValueError, "eps is -1e-06, but must be at least 0"),
        ({"eps": float("nan")}, ValueError, "eps is nan, but must be at least 0"),
        ({"eps": "small"}, TypeError, "eps is a str, but must be a number"),
        ({"eps": None}, TypeError, "eps is a NoneType, but must be a number"),
        ({"eps": True}, TypeError, "eps is a bool, but must be a number"),
    ],
)
def test_rms_norm_rejects_bad_input(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^rms_norm: {words}"):
        rms_norm(**{"x": torch.ones(3, 8), "weight": torch.ones(8), **arguments})


@BOTH_WAYS
@pytest.mark.parametrize("shape", [(5, 24), (1, 16400)], ids=str)
def test_rms_norm_works_without_weight(mode: Any, shape: tuple[int, ...]) -> None:
    inputs = {"x": torch.randn(shape)}
    with ts.use(mode):
        assert_same(forward_and_backward(rms_norm, inputs), forward_and_backward(reference, inputs))


def test_rms_norm_of_a_weight_without_gradient_has_the_same_gradient_of_x() -> None:
    x, weight = torch.randn(5, 24, requires_grad=True), torch.randn(24)
    rms_norm(x, weight).sum().backward()
    copy = x.detach().clone().requires_grad_()
    reference(copy, weight).sum().backward()
    assert x.grad is not None
    assert copy.grad is not None
    torch.testing.assert_close(x.grad, copy.grad)


@BOTH_WAYS
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_rms_norm_keeps_the_dtype_of_x(mode: Any, x_dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 24).to(x_dtype), torch.randn(24).to(weight_dtype)
    with ts.use(mode):
        found = forward_and_backward(rms_norm, {"x": x, "weight": weight, "eps": 1e-6})
    assert found["output 0"].dtype == x_dtype
    assert found["gradient of x"].dtype == x_dtype
    assert found["gradient of weight"].dtype == weight_dtype
    exact = {"x": x.double(), "weight": weight.double(), "eps": 1e-6}
    for name, value in forward_and_backward(reference, exact).items():
        torch.testing.assert_close(found[name].double(), value, rtol=2e-2, atol=3e-2)


@BOTH_WAYS
def test_rms_norm_of_half_precision_computes_in_single(mode: Any) -> None:
    """The square of 300 overflows half precision."""
    x = torch.full((2, 16), 300.0, dtype=torch.float16)
    with ts.use(mode):
        torch.testing.assert_close(rms_norm(x), torch.ones_like(x))


def test_rms_norm_keeps_only_its_arguments_for_the_backward() -> None:
    x, weight = torch.randn(5, 24, requires_grad=True), torch.randn(24, requires_grad=True)
    _, kept = with_saved_addresses(rms_norm, x, weight)
    assert kept == {x.data_ptr(), weight.data_ptr()}


@pytest.mark.parametrize("name", views())
def test_rms_norm_takes_any_strides(name: str) -> None:
    x = views()[name]
    assert_same_in_this_layout("rms_norm", {"x": x, "weight": torch.randn(x.shape[-1] * 2)[::2], "eps": 1e-6})


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0), (0,), (3, 0, 5), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_rms_norm_takes_empty_tensors(shape: tuple[int, ...], transposed: bool) -> None:
    x = torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))) if transposed else torch.randn(shape)
    found = forward_and_backward(rms_norm, {"x": x, "weight": torch.randn(shape[-1]), "eps": 1e-6})
    assert found["output 0"].shape == shape
    assert found["gradient of x"].shape == shape
    torch.testing.assert_close(found["gradient of weight"], torch.zeros(shape[-1]), rtol=0, atol=0)
