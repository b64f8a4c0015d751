"""RMSNorm and ReLU beyond the tests that every operator has: zeros of the ReLU have no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.spec import Inputs

rms_norm_relu, reference = SPECS["rms_norm_relu"].op, SPECS["rms_norm_relu"].reference
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
        ({"x": torch.tensor(1.0)}, ValueError, r"x has 0 dimensions \(shape \(\)\), but must have at least 1"),
        ({"eps": float("nan")}, ValueError, "eps is nan, but must be at least 0"),
    ],
)
def test_rms_norm_relu_rejects_bad_input(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^rms_norm_relu: {words}"):
        rms_norm_relu(**{"x": torch.ones(3, 8), "weight": torch.ones(8), **arguments})


def test_rms_norm_relu_equals_rms_norm_then_relu() -> None:
    x, weight = torch.randn(5, 24), torch.randn(24)
    separately = torch.relu(SPECS["rms_norm"].op(x, weight))
    torch.testing.assert_close(rms_norm_relu(x, weight), separately, rtol=0, atol=0)


@BOTH_WAYS
def test_rms_norm_relu_works_without_weight(mode: Any) -> None:
    inputs = {"x": torch.randn(5, 24)}
    with ts.use(mode):
        assert_same(forward_and_backward(rms_norm_relu, inputs), forward_and_backward(reference, inputs))


def test_rms_norm_relu_has_no_gradient_where_the_result_is_zero() -> None:
    """A negative weight turns the sign around; a weight of zero cuts off everything."""
    x = torch.randn(6, 24, requires_grad=True)
    weight = torch.randn(24)
    weight[3] = 0.0
    y = rms_norm_relu(x, weight.requires_grad_())
    cotangent = torch.randn(6, 24)
    y.backward(cotangent)
    copy, copied_weight = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    reference(copy, copied_weight).backward(cotangent)
    torch.testing.assert_close(x.grad, copy.grad)
    torch.testing.assert_close(weight.grad, copied_weight.grad)
    assert weight.grad is not None
    assert weight.grad[3] == 0


def test_rms_norm_relu_of_a_negative_row_has_no_gradient() -> None:
    x = -torch.rand(2, 24) - 0.1
    x.requires_grad_()
    rms_norm_relu(x, torch.ones(24)).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.zeros(2, 24), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["torch", "interpret"])
def test_float16_result_that_rounds_to_zero_has_its_gradient(mode: Any) -> None:
    """A positive result below the smallest float16 is stored as zero. The ReLU's slope there is one."""
    inputs = {"x": torch.tensor([[2e-6, -3e-6, 1e-6, 4e-6]], dtype=torch.float16), "weight": torch.ones(4).half(),
              "eps": 1e5}  # fmt: skip
    exact = {name: one.double() if isinstance(one, Tensor) else one for name, one in inputs.items()}
    with ts.use(mode):
        found = forward_and_backward(rms_norm_relu, inputs)
    right = forward_and_backward(reference, exact)
    assert not found["output 0"].any()
    for name in ("gradient of x", "gradient of weight"):
        torch.testing.assert_close(found[name].double(), right[name], rtol=1e-3, atol=1e-7)
    assert found["gradient of x"].count_nonzero() == 3


def test_rms_norm_relu_propagates_nan() -> None:
    x: Tensor = torch.randn(2, 24)
    x[0, 3] = float("nan")
    assert rms_norm_relu(x, torch.ones(24))[0].isnan().all()
    assert not rms_norm_relu(x, torch.ones(24))[1].isnan().any()


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (2, 3, 0)], ids=str)
def test_rms_norm_relu_takes_empty_tensors(shape: tuple[int, ...]) -> None:
    inputs = {"x": torch.randn(shape), "weight": torch.randn(shape[-1]), "eps": 1e-6}
    found = forward_and_backward(rms_norm_relu, inputs)
    assert found["output 0"].shape == found["gradient of x"].shape == shape
    torch.testing.assert_close(found["gradient of weight"], torch.zeros(shape[-1]), rtol=0, atol=0)
