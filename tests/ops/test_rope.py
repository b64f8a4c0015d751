"""Rotary embedding beyond what every operator is tested for: both kinds of pairs, all forms of tables, any strides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.rope import reference, rope
from tilesmith.ops.runtime.kernels import recorded_plans

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
PAIRS = pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])
COLUMNS = pytest.mark.parametrize("compact", [False, True], ids=["per element", "per pair"])


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def made_tables(angles: Tensor, interleaved: bool, compact: bool) -> tuple[Tensor, Tensor]:
    """Cosines and sines of one angle per pair, with one column per pair or per element."""
    if not compact:
        angles = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotated_as_complex_numbers(x: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """The same by another route: a pair is a complex number, turning it a multiplication."""
    dim = 2 * angles.shape[-1]
    first, second = (x[..., :dim:2], x[..., 1:dim:2]) if interleaved else x[..., :dim].chunk(2, -1)
    numbers = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    parts = (numbers.real, numbers.imag)
    pairs = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((pairs, x[..., dim:]), -1)


@BOTH_WAYS
@PAIRS
@COLUMNS
@pytest.mark.parametrize("rest", [0, 5])
def test_rope_rotates_pairs_as_complex_numbers(mode: Any, interleaved: bool, compact: bool, rest: int) -> None:
    q, k = torch.randn(2, 3, 9, 12 + rest), torch.randn(2, 2, 9, 12 + rest)
    angles = torch.randn(9, 6) * 3
    with ts.use(mode):
        turned = rope(q, k, *made_tables(angles, interleaved, compact), interleaved, 12)
    for ours, x in zip(turned, (q, k), strict=True):
        torch.testing.assert_close(ours, rotated_as_complex_numbers(x, angles, interleaved))
        torch.testing.assert_close(ours[..., 12:], x[..., 12:], rtol=0, atol=0)


def test_rope_rotates_as_many_elements_as_the_tables_have_columns() -> None:
    q, k, angles = torch.randn(2, 3, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(9, 4)
    cos, sin = made_tables(angles, interleaved=False, compact=False)
    torch.testing.assert_close(rope(q, k, cos, sin), rope(q, k, cos, sin, False, 8), rtol=0, atol=0)


@covering(times=2, interleaved=[False, True], dim=[80, 22], rest=[0, 3], q_heads=[9, 37])
def test_rope_with_more_positions_and_heads_than_one_program(
    interleaved: bool, dim: int, rest: int, q_heads: int
) -> None:
    q, k, angles = torch.randn(1, q_heads, 37, dim + rest), torch.randn(1, 2, 37, dim + rest), torch.randn(37, dim // 2)
    for ours, x in zip(rope(q, k, *made_tables(angles, interleaved, True), interleaved, dim), (q, k), strict=True):
        torch.testing.assert_close(ours, rotated_as_complex_numbers(x, angles, interleaved))


def heads(batch: int, count: int, positions: int, dim: int) -> dict[str, Tensor]:
    """[batch, heads, positions, dim] in several layouts."""
    return {
        "heads before positions": torch.randn(batch, count, positions, dim),
        "positions before heads": torch.randn(batch, positions, count, dim).transpose(1, 2),
        "everything turned round": torch.randn(dim, positions, count, batch).permute(3, 2, 1, 0),
        "part of a joint projection": torch.randn(batch, positions, count, 3 * dim)[..., dim : 2 * dim].transpose(1, 2),
        "one head for all": torch.randn(batch, 1, positions, dim).expand(batch, count, positions, dim),
        "every other element": torch.randn(batch, count, positions, 2 * dim)[..., ::2],
    }


@PAIRS
@pytest.mark.parametrize("layout", heads(1, 1, 1, 1))
def test_rope_takes_any_strides(layout: str, interleaved: bool) -> None:
    q, k = heads(2, 11, 9, 14)[layout], heads(2, 5, 9, 14)[layout]
    cos, sin = (torch.randn(12, 9).t() for _ in range(2))
    leaves = q.detach().requires_grad_(), k.detach().requires_grad_()
    copies = q.detach().clone().requires_grad_(), k.detach().clone().requires_grad_()
    ours, right = rope(*leaves, cos, sin, interleaved), reference(*copies, cos, sin, interleaved)
    torch.testing.assert_close(ours, right)
    assert [one.stride() for one in ours] == [torch.empty_like(one).stride() for one in (q, k)]
    dy = [torch.randn(one.shape[::-1]).permute(3, 2, 1, 0) for one in right]
    torch.testing.assert_close(torch.autograd.grad(ours, leaves, dy), torch.autograd.grad(right, copies, dy))


@PAIRS
@COLUMNS
@pytest.mark.parametrize("shape", [(9,), (1, 9), (2, 9)], ids=str)
def test_rope_takes_tables_of_all_shapes_and_computes_their_gradients(
    shape: tuple[int, ...], interleaved: bool, compact: bool
) -> None:
    """Columns of a pair that differ are taken as they are, for the gradients too."""
    q, k = torch.randn(2, 3, 9, 14), torch.randn(2, 2, 9, 14)
    cos, sin = (torch.randn(*shape, 6 if compact else 12) for _ in range(2))
    ours = [value.clone().requires_grad_() for value in (q, k, cos, sin)]
    right = [value.clone().requires_grad_() for value in (q, k, cos, sin)]
    turned = rope(ours[0], ours[1], ours[2], ours[3], interleaved, 12)
    expected = reference(right[0], right[1], right[2], right[3], interleaved, 12)
    torch.testing.assert_close(turned, expected)
    dy = [torch.randn(one.shape) for one in expected]
    torch.testing.assert_close(torch.autograd.grad(turned, ours, dy), torch.autograd.grad(expected, right, dy))


@PAIRS
def test_rope_gradient_rotates_back(interleaved: bool) -> None:
    q, k = torch.randn(2, 3, 9, 12, requires_grad=True), torch.randn(2, 2, 9, 12, requires_grad=True)
    cos, sin = made_tables(torch.randn(9, 6), interleaved, compact=True)
    turned = rope(q, k, cos, sin, interleaved, 12)
    torch.testing.assert_close(torch.autograd.grad(turned, (q, k), turned), (q.detach(), k.detach()))


@pytest.mark.parametrize("used", [0, 1])
def test_rope_gradient_with_one_unused_result(used: int) -> None:
    q, k = torch.randn(2, 3, 9, 12, requires_grad=True), torch.randn(2, 2, 9, 12, requires_grad=True)
    cos, sin = torch.randn(9, 12, requires_grad=True), torch.randn(9, 12, requires_grad=True)
    ours, right = rope(q, k, cos, sin)[used], reference(q, k, cos, sin)[used]
    dy = torch.randn(right.shape)
    found = torch.autograd.grad(ours, (q, k, cos, sin), dy)
    wanted = torch.autograd.grad(right, (q, k, cos, sin), dy, allow_unused=True)
    for one, other, x in zip(found, wanted, (q, k, cos, sin), strict=True):
        torch.testing.assert_close(one, torch.zeros_like(x) if other is None else other)


def saved(needs_gradient: tuple[bool, ...]) -> int:
    kept: list[Tensor] = []
    values = [torch.randn(2, 3, 9, 12), torch.randn(2, 2, 9, 12), torch.randn(9, 12), torch.randn(9, 12)]
    leaves = [value.requires_grad_(needed) for value, needed in zip(values, needs_gradient, strict=True)]

    def keep(one: Tensor) -> Tensor:
        kept.append(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        rope(leaves[0], leaves[1], leaves[2], leaves[3])
    return len(kept)


def test_rope_keeps_q_and_k_only_for_gradients_of_the_tables() -> None:
    assert saved((True, True, False, False)) == 2
    assert saved((True, True, True, False)) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rope_rounds_low_precision_once(dtype: torch.dtype) -> None:
    q, k = torch.randn(2, 3, 9, 12).to(dtype), torch.randn(2, 2, 9, 12)
    cos, sin = made_tables(torch.randn(9, 6), interleaved=False, compact=False)
    turned_q, turned_k = rope(q, k, cos, sin)
    assert (turned_q.dtype, turned_k.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(turned_q, rope(q.float(), k, cos, sin)[0].to(dtype), rtol=0, atol=0)


def test_rope_takes_one_launch_each_way() -> None:
    q, k = (torch.empty(2, count, 64, 32, device="meta", requires_grad=True) for count in (8, 2))
    cos, sin = torch.empty(64, 32, device="meta"), torch.empty(64, 32, device="meta")
    with recorded_plans() as plans:
        turned = rope(q, k, cos, sin)
        torch.autograd.backward(turned, [torch.empty_like(one) for one in turned])
    assert [len(plan.launches) for plan in plans] == [1, 1]


@pytest.mark.parametrize("shape", [(0, 3, 9, 12), (2, 0, 9, 12), (2, 3, 0, 12)], ids=str)
def test_rope_takes_empty_tensors(shape: tuple[int, ...]) -> None:
    q, k = torch.randn(shape, requires_grad=True), torch.randn(shape[0], 2, *shape[2:], requires_grad=True)
    cos, sin = torch.randn(shape[2], 12), torch.randn(shape[2], 12)
    turned, right = rope(q, k, cos, sin), reference(q, k, cos, sin)
    torch.testing.assert_close(turned, right)
    ours = torch.autograd.grad(turned, (q, k), [torch.ones_like(one) for one in turned])
    torch.testing.assert_close(ours, torch.autograd.grad(right, (q, k), [torch.ones_like(one) for one in right]))


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"q": torch.ones(3, 9, 12)}, ValueError, r"q has 3 dimensions \(shape \(3, 9, 12\)\), but must have 4"),
        ({"k": torch.ones(2, 9, 12)}, ValueError, r"k has 3 dimensions \(shape \(2, 9, 12\)\), but must have 4"),
        ({"k": torch.ones(2, 2, 8, 12)}, ValueError, r"k has shape \(2, 2, 8, 12\), but must agree with q of shape"),
        ({"k": torch.ones(1, 2, 9, 12)}, ValueError, r"k has shape \(1, 2, 9, 12\), but must agree with q of shape"),
        ({"cos": torch.ones(8, 12)}, ValueError, r"cos has shape \(8, 12\), but must be \[positions, columns\] or"),
        ({"cos": torch.ones(3, 9, 12)}, ValueError, r"cos has shape \(3, 9, 12\), but must be \[positions, columns\]"),
        ({"cos": torch.ones(12)}, ValueError, r"cos has shape \(12,\), but must be \[positions, columns\]"),
        ({"sin": torch.ones(9, 6)}, ValueError, r"sin has shape \(9, 6\), but cos has \(9, 12\); they must agree"),
        (
            {"cos": torch.ones(9, 5), "sin": torch.ones(9, 5)},
            ValueError,
            "cos has 5 columns, but must have an even number, from 2 to the 12 that q has",
        ),
        (
            {"cos": torch.ones(9, 14), "sin": torch.ones(9, 14)},
            ValueError,
            "cos has 14 columns, but must have an even number, from 2 to the 12 that q has",
        ),
        ({"rotary_dim": 7}, ValueError, "rotary_dim is 7, but must be even, from 2 to the 12 columns of q"),
        ({"rotary_dim": 14}, ValueError, "rotary_dim is 14, but must be even, from 2 to the 12 columns of q"),
        ({"rotary_dim": 8}, ValueError, "cos has 12 columns, but must have rotary_dim, which is 8, or half as many"),
        ({"rotary_dim": 12.0}, TypeError, "rotary_dim is a float, but must be an int or None"),
        ({"interleaved": 1}, TypeError, "interleaved is a int, but must be a bool"),
    ],
)
def test_rope_rejects(mode: Any, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    good = {
        "q": torch.ones(2, 3, 9, 12), "k": torch.ones(2, 2, 9, 12),
        "cos": torch.ones(9, 12), "sin": torch.ones(9, 12),
    }  # fmt: skip
    with ts.use(mode), pytest.raises(kind, match=f"^rope: {words}"):
        rope(**{**good, **arguments})
