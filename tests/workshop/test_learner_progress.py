"""Progress survives damaged files, and the learner's work is never overwritten."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from pathlib import Path

import pytest

from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import Catalogue
from tilesmith.workshop.learner.progress import EARLIER, FILE, Progress, read, update
from tilesmith.workshop.learner.workshop_folder import Workshop

PASSED = Verdict("vector-add", True, "goals", "")
FAILED = Verdict("vector-add", False, "runs", "no")


def solve(name: str) -> object:
    def change(progress: Progress) -> None:
        progress.of(name).state = "solved"

    return change


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "workshop", Catalogue())


def test_progress_of_new_folder_is_empty(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(tmp_path) == Progress()


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\x00", b"[]", b'{"exercises": 3}', b'{"exercises": {"a": {"state": "flying"}}}',
     b'{"exercises": {"a": {"checks": "many"}}}', b'{"exercises": {"a": 3}}'],
)  # fmt: skip
def test_damaged_file_costs_one_step_and_a_warning(tmp_path: Path, damage: bytes) -> None:
    update(tmp_path, solve("one"))  # type: ignore[arg-type]
    update(tmp_path, solve("two"))  # type: ignore[arg-type]
    (tmp_path / FILE).write_bytes(damage)
    with pytest.warns(RuntimeWarning, match="damaged, so the state before the last step is used"):
        kept = read(tmp_path)
    assert [name for name, record in kept.exercises.items() if record.state == "solved"] == ["one"]
    with pytest.warns(RuntimeWarning, match="damaged"):
        update(tmp_path, solve("three"))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(read(tmp_path).exercises) == {"one", "three"}


def test_two_damaged_files_start_from_zero(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    (tmp_path / EARLIER).write_text("{")
    with pytest.warns(RuntimeWarning, match="starts again from zero"):
        assert read(tmp_path) == Progress()


def test_file_of_later_version_is_read(tmp_path: Path) -> None:
    record = {"state": "solved", "stars": 5}
    (tmp_path / FILE).write_text(json.dumps({"version": 9, "exercises": {"one": record}, "mood": "good"}))
    assert read(tmp_path).of("one").state == "solved"


def test_start_keeps_existing_work(workshop: Workshop) -> None:
    exercise = workshop.catalogue["vector-add"]
    assert workshop.start(exercise)
    workshop.file_of(exercise).write_text("my work")
    assert not workshop.start(exercise)
    assert workshop.file_of(exercise).read_text() == "my work"


def test_reset_saves_the_work_beside_the_starter(workshop: Workshop) -> None:
    exercise = workshop.catalogue["vector-add"]
    workshop.start(exercise)
    assert workshop.reset(exercise) is None  # an unchanged starter is not saved
    for number in (1, 2):
        workshop.file_of(exercise).write_text(f"work {number}")
        kept = workshop.reset(exercise)
        assert kept is not None
        assert kept.read_text() == f"work {number}"
        assert workshop.file_of(exercise).read_text() == exercise.starter.read_text()


def test_solution_needs_a_failed_attempt_or_give_up(workshop: Workshop) -> None:
    exercise = workshop.catalogue["vector-add"]
    workshop.start(exercise)
    workshop.note_check(exercise, FAILED, exercise.starter.read_bytes())
    assert not workshop.may_see_solution(exercise, give_up=False)  # an unchanged starter is no attempt
    workshop.note_check(exercise, FAILED, b"my attempt")
    assert workshop.may_see_solution(exercise, give_up=False)
    assert workshop.may_see_solution(workshop.catalogue["masks"], give_up=True)
    assert workshop.progress().of("masks").gave_up


def test_failed_check_does_not_undo_solved(workshop: Workshop) -> None:
    exercise = workshop.catalogue["vector-add"]
    workshop.start(exercise)
    assert workshop.next_open() == exercise
    workshop.note_check(exercise, PASSED, b"")
    workshop.note_check(exercise, FAILED, b"")
    assert workshop.state(exercise) == "solved"
    following = workshop.next_open()
    assert following is not None
    assert following.needs == ("vector-add",)


def test_two_workshop_folders_are_independent(tmp_path: Path) -> None:
    one, other = (Workshop(tmp_path / name, Catalogue()) for name in ("one", "other"))
    one.note_check(one.catalogue["vector-add"], PASSED, b"")
    assert other.state(other.catalogue["vector-add"]) == "open"


def test_next_hint_counts_up_to_the_last_hint(workshop: Workshop) -> None:
    exercise = workshop.catalogue["vector-add"]
    shown = [workshop.next_hint(exercise) for _ in range(len(exercise.hints) + 1)]
    assert shown == [*range(1, len(exercise.hints) + 1), len(exercise.hints)]


def test_notes_of_three_processes_are_all_kept(tmp_path: Path) -> None:
    def note(process: int) -> None:
        for number in range(60):
            update(tmp_path, solve(f"{process}-{number}"))  # type: ignore[arg-type]

    context = multiprocessing.get_context("fork")
    started = [context.Process(target=note, args=(process,)) for process in range(3)]
    for one in started:
        one.start()
    for one in started:
        one.join()
    assert [one.exitcode for one in started] == [0, 0, 0]
    assert len(read(tmp_path).exercises) == 180
