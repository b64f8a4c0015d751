"""Parametrisation by several lists without all of their product: at first so many that every value occurs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def covering(times: int = 1, **lists: Sequence[Any]) -> pytest.MarkDecorator:
    """Every combination of values from these lists. In a set of them every value occurs, those of the longest list so
    many times, each time beside others; all other combinations are left to `make test-slow`.

    For tests whose arguments each have code of their own. Where two of them meet in the code, list the pairs instead.
    """
    values = [list(one) for one in lists.values()]
    longest = max(map(len, values))
    first = {
        tuple((step + turn * place) % len(one) for place, one in enumerate(values))
        for turn in range(times)
        for step in range(longest)
    }
    return pytest.mark.parametrize(
        tuple(lists),
        [
            pytest.param(
                *(one[number] for one, number in zip(values, numbers, strict=True)),
                id="-".join(_named(one[number]) for one, number in zip(values, numbers, strict=True)),
                marks=[] if numbers in first else [pytest.mark.slow],
            )
            for numbers in product(*(range(len(one)) for one in values))
        ],
    )


def _named(value: Any) -> str:
    return str(getattr(value, "__name__", None) or getattr(value, "name", None) or value)
