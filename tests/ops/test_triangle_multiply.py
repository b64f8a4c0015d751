"""triangle_multiply: both directions, masks, tiles and large values; the rest is tested for every operator alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.triangle_multiply import triangle_multiply
from tilesmith.ops.triangle_multiply.reference import reference
from tilesmith.spec import Inputs

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
DIRECTIONS = pytest.mark.parametrize("direction", ["outgoing", "incoming"])


def made(residues: int = 3, channels: int = 4, hidden: int = 3, batch: int = 1, direction: str = "outgoing") -> Inputs:
    torch.manual_seed(0)
    both = 2 * hidden
    return {
        "z": torch.randn(batch, residues, residues, channels),
        "direction": direction,
        "mask": torch.rand(batch, residues, residues) > 0.3,
        "norm_weight": torch.randn(channels), "norm_bias": torch.randn(channels),
        "projection_weight": torch.randn(both, channels), "gate_weight": torch.randn(both, channels),
        "output_norm_weight": torch.randn(hidden), "output_norm_bias": torch.randn(hidden),
        "output_weight": torch.randn(channels, hidden), "output_gate_weight": torch.randn(channels, channels),
        "projection_bias": torch.randn(both), "gate_bias": torch.randn(both),
        "output_bias": torch.randn(channels), "output_gate_bias": torch.randn(channels),
    }  # fmt: skip


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()


@BOTH_WAYS
@DIRECTIONS
def test_is_what_the_published_algorithms_say(mode: Any, direction: str) -> None:
    """Pair by pair, third residue by third residue."""
    given = made(direction=direction)
    with ts.use(mode):
        ours = triangle_multiply(**given)
    z, mask, n = given["z"][0], given["mask"][0], 3
    zn = torch.stack([torch.stack([standardised(pair) for pair in row]) for row in z])
    zn = zn * given["norm_weight"] + given["norm_bias"]
    projected = zn @ given["projection_weight"].t() + given["projection_bias"]
    a, b = (projected * (zn @ given["gate_weight"].t() + given["gate_bias"]).sigmoid() * mask[..., None]).chunk(2, -1)
    for i in range(n):
        for j in range(n):
            edges = [(a[i, k], b[j, k]) if direction == "outgoing" else (a[k, i], b[k, j]) for k in range(n)]
            x = sum((one * other for one, other in edges), torch.zeros(3))
            xn = standardised(x) * given["output_norm_weight"] + given["output_norm_bias"]
            gate = (given["output_gate_weight"] @ zn[i, j] + given["output_gate_bias"]).sigmoid()
            wanted = gate * (given["output_weight"] @ xn + given["output_bias"])
            torch.testing.assert_close(ours[0, i, j], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inputs", [pytest.param(16, marks=pytest.mark.slow), 32], ids=["read anew", "held"])
def test_every_tile_of_several_is_computed(inputs: int) -> None:
    """Of outputs, with normed rows in several blocks of inputs, and held whole."""
    given = made(residues=17, channels=18, hidden=17)
    for name in ("projection_weight", "gate_weight", "output_weight", "output_gate_weight"):
        given[name] /= 4  # so that gates are open enough for gradients to show
    with ts.use("interpret"), ts.ops.configured(ROWS=16, BLOCK_OUTPUTS=16, BLOCK_INPUTS=inputs):
        found = forward_and_backward(triangle_multiply, given)
    exact = {name: one.double() if _is_floating(one) else one for name, one in given.items()}
    for name, value in forward_and_backward(reference, exact).items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-3, atol=1e-4 * float(value.abs().max()))


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@BOTH_WAYS
@DIRECTIONS
def test_masked_pairs_have_no_influence_on_others(mode: Any, direction: str) -> None:
    given = made(direction=direction)
    mask = given["mask"]
    perturbed = {**given, "z": torch.where(mask[..., None], given["z"], 3 * torch.randn_like(given["z"]))}
    cotangent = torch.randn_like(given["z"]).masked_fill(~mask[..., None], 0.0)

    def results(inputs: Inputs) -> dict[str, Tensor]:
        leaves = {name: one.clone().requires_grad_() if _is_floating(one) else one for name, one in inputs.items()}
        y = triangle_multiply(**leaves)
        y.backward(cotangent)
        found = {name: one.grad for name, one in leaves.items() if _is_floating(one)}
        return {**found, "y": y.detach()[mask], "z": found["z"][mask]}

    with ts.use(mode):
        right, ours = results(given), results(perturbed)
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


@BOTH_WAYS
def test_all_masked_gives_numbers(mode: Any) -> None:
    given = made()
    given["mask"][:] = False
    with ts.use(mode):
        found = forward_and_backward(triangle_multiply, given)
    assert all(value.isfinite().all() for value in found.values())


@BOTH_WAYS
def test_sums_beyond_half_precision_do_not_overflow(mode: Any) -> None:
    """a and b are about 250 each: a single term is near the largest number of half precision, and there are four."""
    given = {**made(residues=4, channels=4, hidden=4), "mask": None}
    given["projection_weight"] *= 2
    given["projection_bias"] = 250.0 + torch.arange(8.0)
    given["gate_bias"] = torch.full((8,), 20.0)
    half = {name: one.half() if _is_floating(one) else one for name, one in given.items()}
    exact = {name: one.double() if _is_floating(one) else one for name, one in half.items()}
    with ts.use(mode):
        ours = triangle_multiply(**half)
    assert ours.isfinite().all()
    torch.testing.assert_close(ours.double(), reference(**exact), rtol=0.02, atol=0.02)


@BOTH_WAYS
@pytest.mark.parametrize(("batch", "residues"), [(0, 3), (2, 0)])
def test_empty_pairs(mode: Any, batch: int, residues: int) -> None:
    given = made(residues, batch=batch)
    with ts.use(mode):
        found = forward_and_backward(triangle_multiply, given)
    assert_same(found, forward_and_backward(reference, given))


def test_channels_that_do_not_lie_side_by_side_are_taken_too() -> None:
    given = made()
    z = given["z"].transpose(0, 3).contiguous().transpose(0, 3)
    weight = given["output_weight"].t().contiguous().t()
    with ts.use("interpret"):
        found = forward_and_backward(triangle_multiply, {**given, "z": z, "output_weight": weight})
    right = forward_and_backward(reference, given)
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"z": torch.ones(3, 3, 4)}, ValueError, r"z has shape \(3, 3, 4\), but must be \[batch, n, n, channels\]"),
        (
            {"z": torch.ones(1, 2, 3, 4)},
            ValueError,
            r"z has shape \(1, 2, 3, 4\), but must be \[batch, n, n, channels\]",
        ),
        ({"direction": "up"}, ValueError, "direction is 'up', but must be one of outgoing, incoming"),
        ({"mask": torch.ones(1, 3, 3)}, TypeError, "mask has dtype float32, but must be bool"),
        ({"mask": torch.ones(1, 3, 2) > 0}, ValueError, r"mask has shape \(1, 3, 2\), but must be \[batch, n, n\]"),
        ({"output_weight": torch.ones(5, 3)}, ValueError, r"output_weight has shape \(5, 3\), but must have 4 rows"),
        ({"gate_weight": torch.ones(6, 3)}, ValueError, r"gate_weight has shape \(6, 3\), but must have \(6, 4\)"),
        ({"norm_bias": torch.ones(3)}, ValueError, r"norm_bias has shape \(3,\), but must have \(4,\)"),
        ({"gate_bias": torch.ones(6).half()}, TypeError, "gate_bias has dtype float16, but z has float32"),
        ({"norm_weight": None}, TypeError, "norm_weight is a NoneType, but must be a tensor"),
        ({"eps": -1.0}, ValueError, "eps is -1.0, but must be at least 0"),
        ({"output_weight": torch.ones(4, 0)}, ValueError, "there are 4 channels and 0 hidden ones"),
    ],
)
def test_bad_input(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^triangle_multiply: {words}"):
        triangle_multiply(**{**made(), **arguments})
