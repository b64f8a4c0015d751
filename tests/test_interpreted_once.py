"""Launches that tests interpret once give the same bits, and other inputs are computed."""

from __future__ import annotations

import pytest
import torch

import tilesmith as ts
from interpreted_once import interpreting_once
from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain import interpreter


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the kernels that the interpreter runs, in order."""
    names: list[str] = []
    interpret = interpreter.interpret

    def noted(kernel: object, *arguments: object, **options: object) -> None:
        names.append(kernel.__name__)  # type: ignore[attr-defined]
        interpret(kernel, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(interpreter, "interpret", noted)
    return names


def test_same_inputs_are_interpreted_once_and_others_again(launches: list[str]) -> None:
    x = torch.randn(3, 5)[:, ::2]
    right = torch.nn.functional.silu(x)
    with ts.use("interpret"), interpreting_once():
        first, second = ts.ops.silu(x), ts.ops.silu(x)
        assert len(launches) == 1
        x[2, 1] += 1
        third = ts.ops.silu(x)
    assert len(launches) == 2
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()
    torch.testing.assert_close(first, right)
    torch.testing.assert_close(third, torch.nn.functional.silu(x))


def test_what_is_watched_is_interpreted(launches: list[str]) -> None:
    x = torch.randn(3)
    with ts.use("interpret"), interpreting_once():
        ts.ops.silu(x)
        with interpreter.interpreting():
            ts.ops.silu(x)
    assert len(launches) == 2


def test_plans_are_as_before_afterwards() -> None:
    before = Plan._interpret
    with interpreting_once():
        assert Plan._interpret is not before
    assert Plan._interpret is before
