"""Packed sequences are each what attention alone would make of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from differentiation import leaves_of
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.attention.reference import reference as of_one
from tilesmith.ops.attention_varlen import SPEC

attention_varlen = SPEC.op


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    """In tiles so small that most sequences take several."""
    torch.manual_seed(0)
    with ts.use("interpret"), ts.ops.configured(BLOCK_QUERIES=16, BLOCK_KEYS=16):
        yield


def starts_of(lengths: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=dtype)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor, **options: Any) -> Tensor:
    outputs = []
    for (first, last), (first_key, last_key) in zip(
        pairwise(starts.tolist()), pairwise(key_starts.tolist()), strict=True
    ):
        its_q, its_k, its_v = (
            part.transpose(0, 1)[None] for part in (q[first:last], k[first_key:last_key], v[first_key:last_key])
        )
        output = of_one(its_q, its_k, its_v, **options)
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)


@covering(
    times=2,
    lengths=[[33], [1, 40, 16, 3], [0, 5, 0, 0, 31, 0], [16, 16], [17, 15]],
    options=[{}, {"causal": True}, {"window": (6, 2)}, {"softcap": 2.0, "scale": 0.4, "causal": True}],
)
def test_each_sequence_attends_to_itself_alone(lengths: list[int], options: Any) -> None:
    starts = starts_of(lengths)
    compare(sum(lengths), sum(lengths), starts, starts, {}, options)


def test_keys_may_have_other_lengths() -> None:
    starts, key_starts = starts_of([3, 20, 7]), starts_of([30, 4, 0])
    compare(30, 34, starts, key_starts, {"cu_seqlens_k": key_starts}, {"causal": True})


def compare(rows: int, key_rows: int, starts: Tensor, key_starts: Tensor, given: Any, options: Any) -> None:
    made = {"q": torch.randn(rows, 4, 16), "k": torch.randn(key_rows, 2, 16), "v": torch.randn(key_rows, 2, 16)}
    ours, right = leaves_of(made), leaves_of(made)
    output = attention_varlen(**ours, cu_seqlens=starts, **given, **options)
    expected = one_by_one(right["q"], right["k"], right["v"], starts, key_starts, **options)
    torch.testing.assert_close(output, expected)
    cotangent = torch.randn(expected.shape)
    found = torch.autograd.grad(output, list(ours.values()), cotangent)
    torch.testing.assert_close(
        found, torch.autograd.grad(expected, list(right.values()), cotangent), rtol=1e-4, atol=1e-5
    )


def test_starts_may_be_of_either_width() -> None:
    q, k, v = torch.randn(21, 4, 16), torch.randn(21, 2, 16), torch.randn(21, 2, 16)
    narrow, wide = (attention_varlen(q, k, v, starts_of([9, 12], dtype)) for dtype in (torch.int32, torch.int64))
    torch.testing.assert_close(narrow, wide, rtol=0, atol=0)


def test_dropout_agrees_with_the_reference() -> None:
    made = {"q": torch.randn(41, 4, 16), "k": torch.randn(41, 2, 16), "v": torch.randn(41, 2, 16)}
    ours, right = leaves_of(made), leaves_of(made)
    options = {"cu_seqlens": starts_of([20, 4, 17]), "dropout": 0.3, "seed": 11}
    outputs = attention_varlen(**ours, **options), SPEC.reference(**right, **options)
    torch.testing.assert_close(*outputs)
    cotangent = torch.randn(41, 4, 16)
    found, wanted = (
        torch.autograd.grad(output, list(leaves.values()), cotangent)
        for output, leaves in zip(outputs, (ours, right), strict=True)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("described", [True, False])
def test_what_is_wrong_with_one_sequence_stays_there(described: bool) -> None:
    made = leaves_of({"q": torch.randn(30, 2, 16), "k": torch.randn(30, 2, 16), "v": torch.randn(30, 2, 16)})
    with torch.no_grad():
        for value in made.values():
            value[20:] = float("nan")
    with ts.ops.configured(described=described):
        output = attention_varlen(**made, cu_seqlens=starts_of([20, 10]), causal=True)
        found = torch.autograd.grad(output, list(made.values()), torch.ones_like(output))
    for one in (output, *found):
        assert one[:20].isfinite().all()
        assert one[20:].isnan().all()


class TestBadInput:
    @pytest.mark.parametrize("mode", ["auto", "interpret"])
    @pytest.mark.parametrize(
        ("wrong", "kind", "words"),
        [
            ({"q": torch.ones(1, 9, 4, 16)}, ValueError, r"q has shape \(1, 9, 4, 16\), but must have 3 dimensions"),
            ({"cu_seqlens": [0, 9]}, TypeError, "cu_seqlens is a list, but must be a tensor"),
            ({"cu_seqlens": torch.tensor([0.0, 9.0])}, TypeError, "cu_seqlens has dtype float32, but must be int32 or"),
            ({"cu_seqlens": torch.tensor([0])}, ValueError, r"cu_seqlens has shape \(1,\), but must be a contiguous"),
            (
                {"cu_seqlens_k": torch.tensor([0, 4, 9])},
                ValueError,
                "cu_seqlens_k has 3 elements, but cu_seqlens has 2",
            ),
            (
                {"k": torch.ones(8, 2, 16), "v": torch.ones(8, 2, 16)},
                ValueError,
                "k has 8 rows, but q has 9; give cu_seqlens_k where they differ",
            ),
        ],
        ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
    )
    def test_is_named(self, mode: Any, wrong: dict[str, Any], kind: type[Exception], words: str) -> None:
        good = {"q": torch.ones(9, 4, 16), "k": torch.ones(9, 2, 16), "v": torch.ones(9, 2, 16)}
        with ts.use(mode), pytest.raises(kind, match=f"^attention_varlen: {words}"):
            attention_varlen(**{**good, "cu_seqlens": torch.tensor([0, 9]), **wrong})

    @pytest.mark.parametrize("places", [[1, 9], [0, 8], [0, 10], [0, 5, 3, 9]], ids=str)
    def test_places_are_looked_at_where_debugging_is_on(self, places: list[int]) -> None:
        q, k = torch.ones(9, 4, 16), torch.ones(9, 2, 16)
        with ts.debug(), pytest.raises(ValueError, match=r"cu_seqlens is .*, but must go up from 0 to the 9 rows"):
            attention_varlen(q, k, k, torch.tensor(places))

    def test_places_outside_the_tensor_are_not_followed(self) -> None:
        q, k = torch.ones(9, 4, 16), torch.ones(9, 2, 16)
        assert attention_varlen(q, k, k, torch.tensor([-3, 4, 20])).shape == q.shape
