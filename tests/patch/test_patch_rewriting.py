"""Copies of methods with some names or statements replaced."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import rewritten

FACTOR = 3


class Example:
    def method(self, x: int, *, shift: int = 1) -> int:
        """Its own."""
        # Patterns match the source without comments.
        y = x * FACTOR
        return y + shift


def test_names_are_replaced_in_the_copy_only() -> None:
    ours = rewritten(Example.method, {"FACTOR": 10})
    assert ours(Example(), 2) == 21
    assert Example().method(2) == 7
    assert ours.__doc__ == "Its own."


def test_statements_are_replaced_and_defaults_kept() -> None:
    ours = rewritten(
        Example.method, {"doubled": lambda x: 2 * x}, {r"y = x \* FACTOR\n *return y": "return doubled(x)"}
    )
    assert ours(Example(), 2) == 5
    assert ours(Example(), 2, shift=4) == 8


@pytest.mark.parametrize("pattern", ["y = x / FACTOR", "[xy]"], ids=["nowhere", "several times"])
def test_pattern_that_does_not_match_once_raises_unknown_code(pattern: str) -> None:
    with pytest.raises(UnknownCodeError, match=r"^Example\.method is written differently"):
        rewritten(Example.method, {}, {pattern: "pass"})


def test_method_without_source_raises_unknown_code() -> None:
    names: dict[str, Any] = {}
    exec("def method(self):\n    return 1", names)
    with pytest.raises(UnknownCodeError, match="the source of method is not available"):
        rewritten(names["method"], {}, {"1": "2"})


def test_traceback_shows_the_rewritten_source() -> None:
    ours = rewritten(Example.method, {}, {r"x \* FACTOR": "x / 0"})
    with pytest.raises(ZeroDivisionError) as error:
        ours(Example(), 1)
    shown = traceback.extract_tb(error.tb)[-1]
    assert shown.line == "y = x / 0"
    assert "Example.method, as patched by Tilesmith" in shown.filename
