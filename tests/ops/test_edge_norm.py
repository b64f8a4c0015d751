"""Edge norm: its errors, its options, gradients of one result alone, and registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from differentiation import forward_and_backward
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops import edge_norm
from tilesmith.ops.edge_norm import backward, reference
from tilesmith.ops.runtime.dispatch import configured
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.toolchain.compiler import Target, compile_kernel

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


def arguments(bias: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "x": torch.randn(2, 3, 3, 5),
        "norm_weight": 1 + torch.randn(5) / 4,
        "norm_bias": torch.randn(5) if bias else None,
        "edge_weight": torch.randn(2, 5),
    }


def as_double(given: dict[str, Any]) -> dict[str, Any]:
    return {name: one.double() if isinstance(one, Tensor) else one for name, one in given.items()}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_matches_a_norm_and_a_product_in_float64(transposed: bool, bias: bool) -> None:
    given = {**arguments(bias), "transposed": transposed, "eps": 1e-5}
    with ts.use("interpret"):
        found = forward_and_backward(edge_norm, given)
    right = forward_and_backward(reference, as_double(given))
    for name, value in right.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads_at_once", [1, 2, 4])
def test_heads_at_once_match_float64(heads_at_once: int) -> None:
    """Three heads: a whole number of groups, a rest, and fewer than a group."""
    given = {**arguments(), "edge_weight": torch.randn(3, 5), "transposed": False, "eps": 1e-5}
    with ts.use("interpret"), configured(HEADS=heads_at_once, ROWS=4):
        found = forward_and_backward(edge_norm, given)
    for name, value in forward_and_backward(reference, as_double(given)).items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("channels", [7, 128, 130, 1024])
def test_few_pairs_take_small_tiles_that_do_not_spill(channels: int, target: str) -> None:
    x = torch.empty(1, 27, 27, channels, device="meta")
    vector, weight = x.new_empty(channels), x.new_empty(8, channels)
    with recorded_plans(target) as plans:
        edge_norm(x, vector, vector, weight)
        backward(x, x.new_empty(1, 8, 27, 27), x, vector, vector, weight, False, 1e-5)
    of_forward, of_backward = (plan.launches[0] for plan in plans)
    if channels <= 130:  # tiles of 4096 elements would make fewer programs than the GPU has multiprocessors
        assert of_forward.arguments["HEADS"] == 4
    if channels == 128:
        assert of_forward.arguments["ROWS"] == of_backward.arguments["ROWS"] == 4
    for launch in (of_forward, of_backward):
        binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0


@pytest.mark.parametrize("which", [0, 1], ids=["norm", "edges"])
def test_gradients_of_one_result_alone(which: int) -> None:
    leaves = list(arguments().values())

    def gradients(function: Callable[..., Any]) -> list[Tensor]:
        mine = [one.clone().requires_grad_() for one in leaves]
        function(*mine, False, 1e-5)[which].sin().sum().backward()
        return [torch.zeros_like(one) if one.grad is None else one.grad for one in mine]

    with ts.use("interpret"):
        found = gradients(edge_norm)
    torch.testing.assert_close(found, gradients(reference), rtol=1e-4, atol=1e-5)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"x": torch.ones(2, 3, 5)}, ValueError, r"x has shape \(2, 3, 5\), but must be \[batch, n, n, channels\]"),
        ({"x": torch.ones(2, 3, 4, 5)}, ValueError, r"x has shape \(2, 3, 4, 5\), but must be"),
        ({"norm_weight": torch.ones(4)}, ValueError, "norm_weight has 4 elements, but x has 5 columns"),
        ({"norm_bias": torch.ones(5, 1)}, ValueError, r"norm_bias has shape \(5, 1\), but must be a vector"),
        (
            {"edge_weight": torch.ones(2, 4)},
            ValueError,
            r"edge_weight has shape \(2, 4\), but must be \[heads",
        ),
        ({"edge_weight": torch.ones(2, 5).half()}, TypeError, "edge_weight has dtype float16, but x has float32"),
        ({"transposed": 1}, TypeError, "transposed is a int, but must be True or False"),
        ({"eps": -1.0}, ValueError, "eps is -1.0, but must be at least 0"),
    ],
)
def test_rejects_arguments_that_do_not_match_x(
    mode: Any, wrong: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^edge_norm: {words}"):
        edge_norm(**{**arguments(), **wrong})


@covering(channels=[256, 64, 84, 128], kind=["added", "with the norm", "alone"])
def test_backward_does_not_spill(channels: int, kind: str) -> None:
    x, vector, edge_weight, dedges = (
        torch.empty(shape, device="meta")
        for shape in ((1, 64, 64, channels), (channels,), (4, channels), (1, 4, 64, 64))
    )
    with recorded_plans() as plans:
        backward(
            None if kind == "alone" else x, dedges, x, vector, vector, edge_weight, True, 1e-5,
            x if kind == "added" else None,
        )  # fmt: skip
    launch = plans[0].launches[0]
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
