"""One warm judge for all tests, and a few tasks and candidates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilesmith.lab.judge import Judge, Rules, Task, task_at

ZOO = Path(__file__).parents[2] / "judge" / "zoo"
BRIDGES = Path(__file__).parents[2] / "judge" / "bridges"


@pytest.fixture(scope="session")
def warm_judge() -> Iterator[Judge]:
    with Judge() as judge:
        judge.start()
        yield judge


@pytest.fixture(scope="session")
def softmax() -> Task:
    return task_at(ZOO / "tasks" / "softmax.py", Rules(seconds=600.0))
