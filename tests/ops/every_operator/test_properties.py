"""Drawn calls agree with references written anew: sizes, strides, offsets, dtypes, magnitudes, NaN, gradients.

The fast part draws a few calls of each operator, the slow part thousands: `TILESMITH_DRAWN_CALLS` of each.
`tests/fuzz.py` draws the same calls without hypothesis, as many as one likes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

import tilesmith as ts
from drawn.verdict import CALLS, REFERENCES, judged

pytest.importorskip("hypothesis")  # a machine with a GPU may not have it

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

FAST, SLOW = 3, int(os.environ.get("TILESMITH_DRAWN_CALLS", "300"))
QUIET = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], derandomize=True
)
OF_FOLD = {"fold.triangle_attention", "fold.triangle_multiplicative_update", "fold.attention_pair_bias"}


def _require_right(operator: str, data: st.DataObject) -> None:
    def choose(options: Sequence[Any]) -> Any:
        return data.draw(st.sampled_from(options))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*padding='same'.*")
        verdict = judged(operator, choose)
    assert verdict.kind in ("right", "refused"), f"{verdict.kind}: {verdict.text}"


def test_every_operator_has_drawn_calls_and_a_reference() -> None:
    assert set(CALLS) == set(REFERENCES) == set(ts.ops.SPECS) | OF_FOLD


@pytest.mark.parametrize("operator", CALLS)
@settings(QUIET, max_examples=FAST)
@given(data=st.data())
def test_a_few_drawn_calls(operator: str, data: st.DataObject) -> None:
    _require_right(operator, data)


@pytest.mark.slow
@pytest.mark.parametrize("operator", CALLS)
@settings(QUIET, max_examples=SLOW, derandomize=False)
@given(data=st.data())
def test_many_drawn_calls(operator: str, data: st.DataObject) -> None:
    _require_right(operator, data)
