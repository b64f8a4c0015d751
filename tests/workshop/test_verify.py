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
from tilesmith.workshop.publishing.verify import verify_one


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with forking(), Worker() as started:
        yield started


def copied(folder: Path) -> Path:
    """Return a private copy of vector-add with two wrong variants."""
    copy = folder / "vector-add"
    shutil.copytree(BUILT_IN / "vector-add", copy)
    (copy / "wrong.toml").write_text(
        """
        [subtracts]
        fails = "right (stored by program)"
        changes = [["x + y)", "x - y)"]]
        [python_list]
        fails = "compiles (does not compile)"
        changes = [["tl.load(x_ptr + offsets)", "[tl.load(x_ptr + offset) for offset in offsets]"]]
        """
    )
    return copy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied(tmp_path)


def problems(folder: Path, worker: Worker) -> str:
    return "\n".join(verify_one(load_exercise(folder), worker).problems)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_sound_exercise_has_no_problems(folder: Path, worker: Worker) -> None:
    found = verify_one(load_exercise(folder), worker)
    assert found.problems == ()
    assert found.programs == 4


def test_broken_solution_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "solution.py", "x + y)", "x - y)")
    change(folder / "wrong.toml", '"x + y)", "x - y)"', '"x - y)", "x * y)"')
    assert problems(folder, worker).startswith("solution.py must pass, but fails at right: Element")


def test_wrong_variant_that_the_solution_does_not_fit_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "solution.py", "x + y)", "y + x)")
    assert "subtracts: the solution has 'x + y)' 0 times, but must have it once" in problems(folder, worker)


def test_wrong_variant_that_passes_is_found(folder: Path, worker: Worker) -> None:
    change(folder / "wrong.toml", "x - y)", "x + y)")
    assert problems(folder, worker) == "subtracts of wrong.toml must fail at right, but passes"


@pytest.fixture(scope="module")
def many_problems(tmp_path_factory: pytest.TempPathFactory, worker: Worker) -> str:
    """Return what is said of an exercise with many faults, each in another place: its programs run once."""
    folder = copied(tmp_path_factory.mktemp("faulty"))
    change(folder / "wrong.toml", "right (stored by program)", "goals")
    change(folder / "wrong.toml", "(does not compile)", "(nobody compiles)")
    change(folder / "exercise.toml", 'starter_fails = "parses"', 'starter_fails = "runs"')
    change(folder / "quiz.py", "facts.kernel.bytes / facts.kernel.programs", "facts.kernel.bytes")
    text = (folder / "exercise.toml").read_text()
    start, end = text.index("hints = ["), text.index("[spec]")
    (folder / "exercise.toml").write_text(text[:start] + text[end:])
    return problems(folder, worker)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("subtracts of wrong.toml must fail at goals, but fails at right", id="another stage of a variant"),
        pytest.param("does not contain 'nobody compiles'", id="a message without the expected words"),
        pytest.param("starter.py must fail at runs, but fails at parses", id="another stage of the starter"),
        pytest.param("but 3 * 4 * BLOCK_SIZE is 3072", id="a changed answer"),
        pytest.param("has 0 hints, but needs at least 3", id="too few hints"),
    ],
)
def test_every_fault_of_one_exercise_is_found(many_problems: str, said: str) -> None:
    assert said in many_problems


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('if one.kind == "load"', "", "gives 3072 as a wrong answer, but 3072 is right"),
        ("facts.kernel.flops /", "facts.kernel.nonsense /", "additions_per_byte of quiz.py fails: AttributeError"),
    ],
)
def test_changed_answer_is_found(folder: Path, worker: Worker, old: str, new: str, said: str) -> None:
    change(folder / "quiz.py", old, new)
    assert said in problems(folder, worker)


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
