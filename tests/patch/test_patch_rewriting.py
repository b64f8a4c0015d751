"""Methods with some of their names or statements replaced."""

from __future__ import annotations

import traceback

import pytest

from tilesmith.patch.rewriting import rewritten

FACTOR = 3


class Example:
    def method(self, x: int, *, shift: int = 1) -> int:
        """Its own."""
        # A comment between statements is no part of what is looked for.
        y = x * FACTOR
        return y + shift


def test_names_mean_ours_in_the_copy_alone() -> None:
    ours = rewritten(Example.method, {"FACTOR": 10})
    assert ours is not None
    assert ours(Example(), 2) == 21
    assert Example().method(2) == 7
    assert ours.__doc__ == "Its own."


def test_statements_are_replaced_and_defaults_stay() -> None:
    ours = rewritten(
        Example.method, {"doubled": lambda x: 2 * x}, {r"y = x \* FACTOR\n *return y": "return doubled(x)"}
    )
    assert ours is not None
    assert ours(Example(), 2) == 5
    assert ours(Example(), 2, shift=4) == 8


@pytest.mark.parametrize("pattern", ["y = x / FACTOR", "[xy]"], ids=["nowhere", "several times"])
def test_what_is_not_found_once_is_left_alone(pattern: str) -> None:
    assert rewritten(Example.method, {}, {pattern: "pass"}) is None


def test_a_method_without_source_is_left_alone() -> None:
    names: dict[str, object] = {}
    exec("def method(self):\n    return 1", names)
    assert rewritten(names["method"], {}, {"1": "2"}) is None  # type: ignore[arg-type]


def test_a_traceback_shows_what_was_run() -> None:
    ours = rewritten(Example.method, {}, {r"x \* FACTOR": "x / 0"})
    assert ours is not None
    with pytest.raises(ZeroDivisionError) as error:
        ours(Example(), 1)
    shown = traceback.extract_tb(error.tb)[-1]
    assert shown.line == "y = x / 0"
    assert "Example.method, as patched by Tilesmith" in shown.filename
