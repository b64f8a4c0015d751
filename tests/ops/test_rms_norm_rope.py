"""QK-norm with rotary positions beyond what every operator is tested for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.rms_norm_rope import apart, reference, rms_norm_rope


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def inputs(batch: int = 2, positions: int = 5, head_dim: int = 6, tables: int = 0) -> list[Any]:
    q, k = torch.randn(batch, positions, 3, head_dim).transpose(1, 2), torch.randn(batch, 1, positions, head_dim)
    angles = torch.randn(*((tables,) if tables else ()), positions, head_dim)
    return [q, k, torch.randn(head_dim), torch.randn(head_dim), angles.cos(), angles.sin()]


@pytest.mark.parametrize("tables", [0, 1, 2])
def test_matches_two_norms_and_a_rotation(tables: int) -> None:
    """With a table for all sequences, and with one for each."""
    given = inputs(tables=tables)
    for ours, right in zip(rms_norm_rope(*given), reference(*given), strict=True):
        torch.testing.assert_close(ours, right)
    for ours, right in zip(rms_norm_rope(*given), apart(*given), strict=True):
        torch.testing.assert_close(ours, right)


def test_tables_that_need_a_gradient_get_one() -> None:
    def gradients(function: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        given = [one.requires_grad_() for one in inputs(tables=2)]
        return torch.autograd.grad([one.sin().sum() for one in function(*given)], given)

    torch.testing.assert_close(gradients(rms_norm_rope), gradients(reference))


@pytest.mark.parametrize(
    ("place", "wrong", "words"),
    [
        (0, torch.ones(3, 5, 6), "q has 3 dimensions"),
        (1, torch.ones(2, 1, 4, 6), r"k has shape \(2, 1, 4, 6\), but must agree with q"),
        (2, torch.ones(5), "q_weight has"),
        (4, torch.ones(5, 4), r"cos has shape \(5, 4\), but must be \[positions, head_dim\]"),
    ],
)
def test_wrong_argument_is_named(place: int, wrong: Tensor, words: str) -> None:
    given = inputs()
    given[place] = wrong
    with pytest.raises(ValueError, match=f"^rms_norm_rope: {words}"):
        rms_norm_rope(*given)
