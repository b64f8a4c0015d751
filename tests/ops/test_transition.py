"""transition: its formula, its residual, its launches and its errors. Loops over specs test the rest."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differentiation import assert_same, forward_and_backward
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS, transition
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import Inputs

reference = SPECS["transition"].reference
RESIDUAL = pytest.mark.parametrize("residual", [False, True], ids=["update", "residual"])
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


def random(*shape: int) -> Tensor:
    return torch.randn(shape) / math.sqrt(shape[-1])


def made(residual: bool = False) -> Inputs:
    torch.manual_seed(0)
    return {
        "x": torch.randn(2, 3, 5, 6), "norm_weight": 1 + random(6), "norm_bias": random(6),
        "expand_weight": random(9, 6), "expand_bias": random(9), "contract_weight": random(6, 9),
        "contract_bias": random(6), "eps": 1e-5, "residual": residual,
    }  # fmt: skip


def as_dtype(given: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: one.to(dtype) if isinstance(one, Tensor) else one for name, one in given.items()}


@BOTH_WAYS
def test_transition_is_a_norm_and_two_linear_layers(mode: Any) -> None:
    given = made()
    normed = F.layer_norm(given["x"], (6,), given["norm_weight"], given["norm_bias"])
    hidden = (normed @ given["expand_weight"].t() + given["expand_bias"]).relu()
    with ts.use(mode):
        y = transition(**given)
        with_x = transition(**{**given, "residual": True})
    torch.testing.assert_close(y, hidden @ given["contract_weight"].t() + given["contract_bias"])
    torch.testing.assert_close(with_x, given["x"] + y)


@RESIDUAL
def test_transition_gradients_match_float64_to_the_last_bits(residual: bool) -> None:
    given = made(residual)
    with ts.use("interpret"):
        found = forward_and_backward(transition, given)
    for name, right in forward_and_backward(reference, as_dtype(given, torch.float64)).items():
        atol = 2e-6 * float(right.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(found[name].double(), right, rtol=0, atol=atol)


def test_transition_sums_the_gradient_of_the_last_bias_in_float32() -> None:
    """The incoming gradients differ so much in size that sums in bf16 would lose the small ones."""

    def bias_gradient(function: Any, given: Inputs) -> Tensor:
        bias = given["contract_bias"].clone().requires_grad_()
        dy = torch.linspace(-9, 3, given["x"].numel()).exp2().view(given["x"].shape).bfloat16()
        with ts.use("interpret"):
            found: Tensor = torch.autograd.grad(function(**{**given, "contract_bias": bias}), bias, dy.to(bias.dtype))[
                0
            ]
        return found

    given = as_dtype(made(residual=True), torch.bfloat16)
    right = bias_gradient(reference, as_dtype(given, torch.float64))
    torch.testing.assert_close(bias_gradient(transition, given), right.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize(("residual", "launches"), [(False, True), (True, False)])
def test_transition_sums_the_last_bias_in_the_norms_backward_with_a_residual(residual: bool, launches: bool) -> None:
    leaves: dict[str, Any] = {
        name: one.to("meta").requires_grad_() if isinstance(one, Tensor) else one
        for name, one in made(residual).items()
    }
    with recorded_plans() as plans:
        y = transition(**leaves)
        torch.autograd.grad(y, [one for one in leaves.values() if isinstance(one, Tensor)], torch.empty_like(y))
    names = [launch.kernel.__name__ for plan in plans for launch in plan.launches]
    assert ("sum_kernel" in names) is launches


@RESIDUAL
def test_transition_takes_any_strides(residual: bool) -> None:
    given = made(residual)
    turned = {**given, "x": given["x"].transpose(0, 2).contiguous().transpose(0, 2)}
    with ts.use("interpret"):
        assert_same(forward_and_backward(transition, turned), forward_and_backward(transition, given))


@RESIDUAL
def test_opcheck_accepts_the_torch_operator(residual: bool) -> None:
    with ts.use("interpret"):
        torch.library.opcheck(torch.ops.tilesmith.transition_forward, tuple(made(residual).values()))


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"x": torch.ones(())}, ValueError, r"x has 0 dimensions \(shape \(\)\), but must have at least 1"),
        ({"x": torch.ones(2, 5)}, ValueError, r"norm_weight has shape \(6,\), but must have \(5,\)"),
        ({"x": torch.ones(2, 0)}, ValueError, "x has 0 channels and expand_weight 9 rows, but both must be positive"),
        ({"x": torch.ones(2, 6).long()}, TypeError, "x has dtype int64"),
        ({"norm_bias": torch.ones(7)}, ValueError, r"norm_bias has shape \(7,\), but must have \(6,\)"),
        ({"expand_weight": torch.ones(9)}, ValueError, r"expand_weight has 1 dimensions .* but must have at least 2"),
        ({"expand_bias": torch.ones(6)}, ValueError, r"expand_bias has shape \(6,\), but must have \(9,\)"),
        ({"contract_weight": torch.ones(9, 6)}, ValueError, r"contract_weight has shape \(9, 6\), but must have \(6"),
        ({"contract_bias": torch.ones(6).half()}, TypeError, "contract_bias has dtype float16, but x has float32"),
        ({"contract_bias": None}, TypeError, "contract_bias is a NoneType, but must be a tensor"),
        ({"eps": -1.0}, ValueError, "eps is -1.0"),
        ({"residual": 1}, TypeError, "residual is 1, but must be True or False"),
    ],
)  # fmt: skip
def test_transition_refuses_bad_input_by_name(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^transition: {words}"):
        transition(**{**made(), **arguments})
