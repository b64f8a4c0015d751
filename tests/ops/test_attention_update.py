"""attention_update: what it is made of, its sides, biases and masks; the rest is tested for every operator alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differentiation import assert_same, forward_and_backward
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.attention_update import attention_update
from tilesmith.ops.attention_update.operator import reference
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import Inputs

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
ADDED = pytest.mark.parametrize("residual", [False, True], ids=["update", "added"])
SIDES = pytest.mark.parametrize("along_columns", [True, False], ids=["along columns", "along rows"])


def random(*shape: int) -> Tensor:
    return torch.randn(shape) / math.sqrt(shape[-1])


def made(rows: int = 3, columns: int = 3, channels: int = 5, heads: int = 2, head: int = 4, **more: Any) -> Inputs:
    torch.manual_seed(0)
    width = heads * head
    return {
        "x": torch.randn(2, rows, columns, channels),
        "norm_weight": 1 + random(channels), "norm_bias": random(channels),
        "query_key_value_weight": 2 * random(3 * width, channels), "gate_weight": random(width, channels),
        "gate_bias": random(width), "output_weight": random(channels, width), "output_bias": random(channels),
        "heads": heads, **more,
    }  # fmt: skip


def doubled(given: Inputs) -> Inputs:
    return {name: one.double() if _is_floating(one) else one for name, one in given.items()}


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def assert_right_to_the_last_bits(found: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    for name, value in right.items():
        atol = 2e-6 * float(value.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(found[name].double(), value, rtol=0, atol=atol)


@BOTH_WAYS
@SIDES
def test_is_what_the_published_algorithms_say(mode: Any, along_columns: bool) -> None:
    """Place by place, head by head: a pair ij attends to ik with the edge jk, or to kj with the edge ki."""
    given = made(edge_weight=random(2, 5), along_columns=along_columns)
    given["mask"] = torch.rand(2, 3, 3) > 0.3
    with ts.use(mode):
        ours = attention_update(**given)
    xn = F.layer_norm(given["x"], (5,), given["norm_weight"], given["norm_bias"])[0]
    q, k, v = (xn @ given["query_key_value_weight"].t()).view(3, 3, 3, 2, 4).unbind(2)
    edges, gate = xn @ given["edge_weight"].t(), torch.sigmoid(xn @ given["gate_weight"].t() + given["gate_bias"])
    for i in range(3):
        for j in range(3):
            seen = [(i, n) if along_columns else (n, j) for n in range(3)]
            third = [(j, n) if along_columns else (n, i) for n in range(3)]
            there = torch.stack([given["mask"][0][place] for place in seen])
            scores = torch.stack(
                [(q[i, j] * k[place]).sum(-1) / 2 + edges[edge] for place, edge in zip(seen, third, strict=True)]
            ).masked_fill(~there[:, None], float("-inf"))
            weights = scores.softmax(0).nan_to_num(0.0)
            attended = sum((weights[n][:, None] * v[place] for n, place in enumerate(seen)), torch.zeros(2, 4))
            wanted = given["output_weight"] @ (gate[i, j] * attended.flatten()) + given["output_bias"]
            torch.testing.assert_close(ours[0, i, j], wanted, rtol=1e-4, atol=1e-5)


@covering(times=2, along_columns=[True, False], kind=["edges", "bias", "neither"], residual=[False, True])
def test_gradients_are_right_to_the_last_bits(along_columns: bool, kind: str, residual: bool) -> None:
    given = made(2 if kind == "bias" else 3, 3, along_columns=along_columns, residual=residual)
    length = given["x"].shape[2 if along_columns else 1]
    given |= {"edges": {"edge_weight": random(2, 5)}, "bias": {"bias": random(2, 2, length, length)}}.get(kind, {})
    with ts.use("interpret"):
        found = forward_and_backward(attention_update, given)
    assert_right_to_the_last_bits(found, forward_and_backward(reference, doubled(given)))


@ADDED
def test_every_tile_of_several_is_computed(residual: bool) -> None:
    given = made(4, 4, 7, 2, 9, edge_weight=random(2, 7), residual=residual)
    with ts.use("interpret"), ts.ops.configured(ROWS=16, COLUMNS=16):
        found = forward_and_backward(attention_update, given)
    assert_right_to_the_last_bits(found, forward_and_backward(reference, doubled(given)))


@covering(kind=["edges", "neither"], dtype=[torch.bfloat16, torch.float16])
def test_sums_in_single_precision_for_the_bias_of_an_update_that_is_added(kind: str, dtype: torch.dtype) -> None:
    given = made(7, 7, residual=True, edge_weight=random(2, 5) if kind == "edges" else None)
    given = {name: one.to(dtype) if _is_floating(one) else one for name, one in given.items()}
    found = bias_gradient_of(attention_update, "output_bias", given)
    right = bias_gradient_of(reference, "output_bias", doubled(given))
    torch.testing.assert_close(found, right.to(dtype), rtol=0, atol=0)


def bias_gradient_of(function: Callable[..., Tensor], name: str, given: Inputs) -> Tensor:
    """With gradients that come in of so many sizes that sums in less precision would lose the small ones."""
    bias = given[name].clone().requires_grad_()
    dy = torch.linspace(-9, 3, given["x"].numel()).exp2().view(given["x"].shape).bfloat16()
    with ts.use("interpret"):
        found: Tensor = torch.autograd.grad(function(**{**given, name: bias}), bias, dy.to(bias.dtype))[0]
    return found


@pytest.mark.parametrize("kind", ["edges", "neither"])
def test_the_bias_of_an_update_that_is_added_needs_no_launches_of_its_own(kind: str) -> None:
    def launched(residual: bool) -> list[str]:
        given = made(edge_weight=random(2, 5) if kind == "edges" else None, residual=residual)
        return launched_by(attention_update, given)

    assert "sum_kernel" in launched(residual=False)
    assert "sum_kernel" not in launched(residual=True)


def launched_by(function: Callable[..., Tensor], given: Inputs) -> list[str]:
    leaves = {name: one.to("meta").requires_grad_() if _is_floating(one) else one for name, one in given.items()}
    with recorded_plans() as plans:
        y = function(**leaves)
        torch.autograd.grad(y, [one for one in leaves.values() if _is_floating(one)], torch.empty_like(y))
    return [launch.kernel.__name__ for plan in plans for launch in plan.launches]


@covering(kind=["edges", "bias"], residual=[False, True])
def test_opcheck_accepts_its_backward(kind: str, residual: bool) -> None:
    given = made(edge_weight=random(2, 5) if kind == "edges" else None, residual=residual)
    x, edge_weight = given["x"], given["edge_weight"]
    bias = random(2, 2, 3, 3) if kind == "bias" else None
    numbers = (given["heads"], True, 1e-5, False, residual)
    with ts.use("interpret"):
        _, *kept = torch.ops.tilesmith.attention_update_forward(
            *(one for one in given.values() if _is_floating(one)), *([None] if edge_weight is None else []), bias, None,
            *numbers,
        )  # fmt: skip
        parameters = (given[name] for name in ("norm_weight", "norm_bias", "gate_bias", "output_weight"))
        torch.library.opcheck(
            torch.ops.tilesmith.attention_update_backward,
            (torch.randn_like(x), *kept, x, *parameters, edge_weight, bias, None, *numbers, bias is not None),
        )


@pytest.mark.parametrize("kind", ["edges", "neither"])
def test_adds_to_x_of_any_strides_and_to_gradients_of_any(kind: str) -> None:
    """Along two dimensions, the gradient of a sum is one number for all."""
    given = made(residual=True, edge_weight=random(2, 5) if kind == "edges" else None)
    turned = {**given, "x": given["x"].transpose(0, 2).contiguous().transpose(0, 2)}

    def gradient(inputs: Inputs) -> tuple[Tensor, ...]:
        x, bias = (inputs[name].clone().requires_grad_() for name in ("x", "output_bias"))
        return torch.autograd.grad(attention_update(**{**inputs, "x": x, "output_bias": bias}).sum(), (x, bias))

    with ts.use("interpret"):
        assert_same(forward_and_backward(attention_update, turned), forward_and_backward(attention_update, given))
        torch.testing.assert_close(gradient(turned), gradient(given))
    torch.testing.assert_close(gradient(turned), gradient(given))


@BOTH_WAYS
def test_under_autocast_adds_to_x_as_it_is(mode: Any) -> None:
    given = {**made(), "x": made()["x"] + 1000}
    with ts.use(mode), torch.autocast("cpu", torch.bfloat16):
        update, added = attention_update(**given), attention_update(**given, residual=True)
    assert update.dtype == torch.bfloat16
    torch.testing.assert_close(added, given["x"] + update, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 3, 3, 5), (2, 0, 0, 5)], ids=str)
@ADDED
@pytest.mark.parametrize("kind", ["edges", "neither"])
def test_without_a_residue_there_is_nothing(shape: tuple[int, ...], residual: bool, kind: str) -> None:
    given = {**made(residual=residual), "x": torch.randn(shape)}
    given |= {"edge_weight": random(2, 5)} if kind == "edges" else {}
    with ts.use("interpret"):
        found = forward_and_backward(attention_update, given)
    assert found["output 0"].shape == shape
    assert not any(value.any() for value in found.values())


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"x": torch.ones(3, 3, 5)}, ValueError, r"x has shape \(3, 3, 5\), but must be \[batch, rows, columns, chann"),
        ({"heads": 3}, ValueError, "heads is 3, but must divide the 8 rows of gate_weight"),
        ({"heads": 2.0}, TypeError, "heads is a float, but must be a whole number"),
        ({"gate_bias": torch.ones(3)}, ValueError, r"gate_bias has shape \(3,\), but must have \(8,\)"),
        ({"norm_weight": torch.ones(5).half()}, TypeError, "norm_weight has dtype float16, but x has float32"),
        ({"mask": torch.ones(2, 3, 3)}, TypeError, "mask has dtype float32, but must be bool"),
        ({"along_columns": 1}, TypeError, "along_columns is"),
        ({"residual": 1}, TypeError, "residual is a int, but must be True or False"),
        ({"eps": -1.0}, ValueError, "eps is -1.0, but must be at least 0"),
        ({"bias": torch.ones(2, 2, 3, 4)}, ValueError, r"bias has shape \(2, 2, 3, 4\), but must have \(2, 2, 3, 3\)"),
        ({"bias": torch.ones(2, 2, 3, 3), "edge_weight": torch.ones(2, 5)}, ValueError, "edge_weight makes a bias"),
        ({"x": torch.ones(2, 4, 3, 5), "edge_weight": torch.ones(2, 5)}, ValueError, "edge_weight is given, but x"),
    ],
)  # fmt: skip
def test_bad_input(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^attention_update: {words}"):
        attention_update(**{**made(), **arguments})
