# mypy: disable-error-code="no-untyped-call"
# PyTorch types its rarer functions not at all.
"""GELU and GeGLU beyond what every operator is tested for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import tilesmith as ts
from tilesmith.ops.geglu import backward as geglu_backward
from tilesmith.ops.geglu import backward_with_output, geglu
from tilesmith.ops.gelu import backward_with_output as gelu_backward_with_output
from tilesmith.ops.gelu import gelu


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def test_unknown_approximation_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^geglu: approximate is 'erf', but must be 'none' or 'tanh'"):
        geglu(torch.ones(3, 8), torch.ones(3, 8), "erf")
    with pytest.raises(ValueError, match=r"^gelu: approximate is 'erf', but must be 'none' or 'tanh'"):
        gelu(torch.ones(3, 8), "erf")


def test_errors_name_geglu() -> None:
    with pytest.raises(ValueError, match=r"^geglu: up has shape \(3, 7\), but gate has \(3, 8\); they must agree"):
        geglu(torch.ones(3, 8), torch.ones(3, 7))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_large_and_small_values_match_double_precision(approximate: str) -> None:
    x = torch.tensor([-1e4, -100.0, -12.0, -5.0, -1e-3, 0.0, 1e-30, 3.0, 100.0, 1e4, 1e20], requires_grad=True)
    exact = x.detach().double().requires_grad_()
    y, wanted = gelu(x, approximate), F.gelu(exact, approximate=approximate)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-6)
    y.sum().backward()
    wanted.sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.grad.clamp(-2, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_halves_of_one_tensor_equal_two_tensors(approximate: str) -> None:
    packed = torch.randn(5, 40)[:, 3:27]
    gate, up = packed.chunk(2, -1)
    torch.testing.assert_close(geglu(packed, None, approximate), geglu(gate, up, approximate))


def test_backward_can_return_the_output() -> None:
    gate, up, dy = torch.randn(7, 66)[:, ::2], torch.randn(33, 7).t(), torch.randn(7, 33)
    dgate, dup, y = backward_with_output(dy, gate, up, "tanh")
    torch.testing.assert_close((dgate, dup), geglu_backward(dy, gate, up, "tanh"), rtol=0, atol=0)
    torch.testing.assert_close(y, geglu(gate, up, "tanh"), rtol=0, atol=0)
    _, y = gelu_backward_with_output(dy, gate, "none")
    torch.testing.assert_close(y, gelu(gate), rtol=0, atol=0)
