"""What is tried first covers every value, and nothing is tried never."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from covering import covering

LISTS: dict[str, list[Any]] = {"one": [1, 2, 3, 4, 5], "other": ["a", "b"], "third": [None, True, False]}


@pytest.mark.parametrize("times", [1, 2])
def test_every_value_comes_first_and_every_combination_once(times: int) -> None:
    names, parameters = covering(times, **LISTS).mark.args
    assert names == tuple(LISTS)
    assert [one.values for one in parameters] == list(product(*LISTS.values()))
    first = [one.values for one in parameters if not one.marks]
    assert len(first) == times * 5
    for place, values in enumerate(LISTS.values()):
        assert {one[place] for one in first} == set(values)
    assert {mark.name for one in parameters for mark in one.marks} == {"slow"}
