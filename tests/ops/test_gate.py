"""Gate: the errors and the meaning that the loops over all operators do not test."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilesmith as ts

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


@BOTH_WAYS
@pytest.mark.parametrize(
    ("gate", "kind", "words"),
    [
        (torch.ones(3, 4), ValueError, r"gate has shape \(3, 4\), but x has \(2, 4\); they must be the same"),
        (torch.ones(4), ValueError, r"gate has shape \(4,\), but x has \(2, 4\)"),
        (torch.ones(2, 4).half(), TypeError, "gate has dtype float16, but x has float32"),
    ],
)
def test_gate_rejects_a_gate_that_does_not_match_x(mode: Any, gate: Any, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^gate: {words}"):
        ts.ops.gate(torch.ones(2, 4), gate)


def test_open_gate_passes_x_and_closed_gate_passes_zero() -> None:
    x = torch.tensor([1.5, -2.0, 3.0, 4.0])
    with ts.use("interpret"):
        y = ts.ops.gate(x, torch.tensor([200.0, 200.0, -200.0, 0.0]))
    torch.testing.assert_close(y, torch.tensor([1.5, -2.0, 0.0, 2.0]), rtol=0, atol=0)
