"""Fixtures of all tests of optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.ops.runtime.plan import Plan


@pytest.fixture(autouse=True)
def in_the_interpreter(request: pytest.FixtureRequest) -> Iterator[None]:
    with ts.use("auto" if request.node.get_closest_marker("gpu") else "interpret"):
        yield


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Return the plans that run; none where torch computes."""
    seen: list[Plan] = []
    original = Plan.run

    def run(plan: Plan, arguments: Any) -> Any:
        seen.append(plan)
        return original(plan, arguments)

    monkeypatch.setattr(Plan, "run", run)
    return seen
