"""Ten exercises in the studio with typical mistakes: each mistake gets its message, each solution is solved."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser
from running_studio import running_studio
from walk import WALK, walk

from tilesmith.workshop.course.catalogue import BUILT_IN


def test_walk_has_ten_exercises_and_every_mistake_changes_the_solution() -> None:
    assert len(WALK) == 10
    for name, mistakes in WALK.items():
        solution = (BUILT_IN / name / "solution.py").read_text()
        assert mistakes
        assert all(one.right in solution and one.right != one.wrong for one in mistakes)


@pytest.mark.slow
def test_every_mistake_gets_its_message_and_every_solution_is_solved(tmp_path: Path) -> None:
    said = {(name, one.wrong): one.says for name, mistakes in WALK.items() for one in mistakes}
    with running_studio(tmp_path / "workshop") as studio, Browser(tmp_path, server=studio.origin) as browser:
        for save in walk(studio, browser):
            assert save.passed == (not save.mistake), save
            if save.mistake:
                assert said[save.exercise, save.mistake] in save.message
        assert browser.complaints == []
        assert all(studio.workshop.progress().of(name).state == "solved" for name in WALK)
