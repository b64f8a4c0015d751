"""`learn verify` finds exercises that do not do what they declare."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import forking
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.isolation.worker import Worker
from tilesmith.workshop.publishing.verify import verify, verify_one


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with forking(), Worker() as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a private copy of vector-add with two of its wrong variants."""
    copy = tmp_path / "vector-add"
    shutil.copytree(BUILT_IN / "vector-add", copy)
    for variant in (copy / "wrong").glob("*.py"):
        if variant.name not in ("subtracts.py", "python_list.py"):
            variant.unlink()
    return copy


def problems(folder: Path, worker: Worker) -> str:
    return "\n".join(verify_one(load_exercise(folder), worker).problems)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.usefixtures("forked")
def test_sound_exercise_has_no_problems(folder: Path) -> None:
    (found,) = verify([load_exercise(folder)], jobs=1)
    assert found.problems == ()
    assert found.programs == 4


def test_broken_solution_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "solution.py", "x + y)", "x - y)")
    assert problems(folder, worker).startswith("solution.py must pass, but fails at right: Element")


def test_wrong_variant_that_passes_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "wrong" / "subtracts.py", "x - y)", "x + y)")
    assert problems(folder, worker) == "wrong/subtracts.py must fail at right, but passes"


def test_wrong_variant_that_fails_at_another_stage_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "wrong" / "subtracts.py", "# fails: right", "# fails: goals")
    assert "wrong/subtracts.py must fail at goals, but fails at right" in problems(folder, worker)


def test_message_without_the_expected_words_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "wrong" / "subtracts.py", "stored by program", "stored by nobody")
    assert "does not contain 'stored by nobody'" in problems(folder, worker)


def test_starter_that_fails_at_another_stage_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "exercise.toml", 'starter_fails = "parses"', 'starter_fails = "runs"')
    assert "starter.py must fail at runs, but fails at parses" in problems(folder, worker)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("facts.kernel.bytes / facts.kernel.programs", "facts.kernel.bytes", "but 3 * 4 * BLOCK_SIZE is 3072"),
        ('if one.kind == "load"', "", "gives 3072 as a wrong answer, but 3072 is right"),
        ("facts.kernel.flops /", "facts.kernel.nonsense /", "additions_per_byte of quiz.py fails: AttributeError"),
    ],
)
def test_changed_answer_is_found(folder: Path, worker: Worker, old: str, new: str, said: str) -> None:
    change(folder / "quiz.py", old, new)
    assert said in problems(folder, worker)


def test_too_few_hints_are_found(folder: Path, worker: Worker) -> None:
    text = (folder / "exercise.toml").read_text()
    start, end = text.index("hints = ["), text.index("[spec]")
    (folder / "exercise.toml").write_text(text[:start] + text[end:])
    assert "has 0 hints, but needs at least 3" in problems(folder, worker)


def test_exercise_of_questions_only_is_verified(tmp_path: Path, worker: Worker) -> None:
    folder = questions_alone(tmp_path, "2 + 2")
    assert problems(folder, worker) == "has 0 hints, but needs at least 3\nhas 1 questions, but needs at least 2"
    folder = questions_alone(tmp_path, "2 + 3")
    assert "question 1: four is 4, but 2 + 3 is 5" in problems(folder, worker)


def test_worked_that_is_only_a_number_is_found(tmp_path: Path, worker: Worker) -> None:
    assert "question 1: worked is only the number 4" in problems(questions_alone(tmp_path, "4"), worker)


def questions_alone(tmp_path: Path, worked: str) -> Path:
    folder = tmp_path / "myths"
    folder.mkdir(exist_ok=True)
    question = f'[[quiz]]\nquestion = "2 + 2?"\nanswer = "four"\nworked = "{worked}"\nreply = "So it is."\n'
    (folder / "exercise.toml").write_text(f'id = "myths"\ntitle = "Myths"\ntrack = "tools"\n{question}')
    (folder / "page.md").write_text("# Myths\n")
    (folder / "quiz.py").write_text("def four(facts):\n    return 4\n")
    return folder
