"""Reading exercises: every mistake becomes one line that names the place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise import ExerciseError, Goal
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.course.wrong_variants import wrong_variants


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "vector-add"
    shutil.copytree(BUILT_IN / "vector-add", copy)
    return copy


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Add two vectors"', "", "'title' is missing"),
        ('title = "Add two vectors"', "title = 3", "'title' is 3, which is not a str"),
        ("needs = []", "needs = [1]", "'needs' holds 1, which is not a string"),
        ("needs = []", "need = []", "unknown key 'need'"),
        ('id = "vector-add"', 'id = "add"', "the id is 'add', but the folder is called 'vector-add'"),
        ('measured = "four-blocks"', 'measured = "huge"', "measured is 'huge', but the sizes are"),
        ("[[hidden]]", "[[seen]]", "needs at least one visible and one hidden size"),
        ('name = "four-blocks"', 'name = "many-blocks"', "two sizes have the same name"),
        ("at_most = 1", "", "a goal needs at_most, at_least or both"),
        (
            "at_most = 1",
            'at_most = 1\nsize = "huge"',
            "the goal loads_per_element names the size 'huge', which does not exist",
        ),
        ('worked = "3 * 4 * BLOCK_SIZE"', "", "quiz 1: a question needs worked or between"),
        ('starter_fails = "parses"', 'starter_fails = "never"', "starter_fails is 'never'"),
        ("needs = []", "needs = [", "exercise.toml: "),
    ],
)
def test_mistake_in_exercise_toml_is_one_line(folder: Path, old: str, new: str, said: str) -> None:
    path = folder / "exercise.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ExerciseError) as refused:
        load_exercise(folder)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["page.md", "starter.py", "solution.py", "meaning.py", "quiz.py", "exercise.toml"])
def test_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ExerciseError, match=f"there is no {name}"):
        load_exercise(folder)


def test_wrong_variant_is_the_solution_with_its_changes(folder: Path) -> None:
    (folder / "wrong.toml").write_text(
        '[both]\nfails = "runs (out of bounds)"\nchanges = [["x + y)", "x - y)"], ["return out", "return x"]]\n'
    )
    (variant,) = wrong_variants(load_exercise(folder))
    assert (variant.name, variant.stage, variant.words) == ("both", "runs", "out of bounds")
    solution = (folder / "solution.py").read_text()
    assert variant.text == solution.replace("x + y)", "x - y)").replace("return out", "return x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one = 1", "'one' is 1, which is not a table"),
        ("[one]\nchanges = []", "one: 'fails' is missing"),
        ("[one]\nfails = 'right'", "one: 'changes' is missing"),
        ("[one]\nfails = 'nowhere'\nchanges = []", "one: 'fails' must begin with one of .*, not 'nowhere'"),
        ("[one]\nfails = 'right'\nchanges = [['x']]", r"one: each of 'changes' must be \[old text, new text\], not"),
        ("[one]\nfails = 'right'\nchanges = [['absent', '']]", "one: the solution has 'absent' 0 times"),
        (
            "[one]\nfails = 'right'\nchanges = [['x', 'z']]",
            r"one: the solution has 'x' \d+ times, but must have it once",
        ),
        ("[one]\nfails = 'right'\nchanges = []\nmore = 1", "one: unknown key 'more'"),
        ("[one", "wrong.toml: "),
    ],
)
def test_mistake_in_wrong_variants_is_named(folder: Path, text: str, said: str) -> None:
    (folder / "wrong.toml").write_text(text)
    with pytest.raises(ExerciseError, match=said):
        wrong_variants(load_exercise(folder))


@pytest.mark.parametrize("file", sorted(BUILT_IN.glob("*/exercise.toml")), ids=lambda file: file.parent.name)
def test_wrong_variants_fit_the_solution(file: Path) -> None:
    exercise = load_exercise(file.parent)
    texts = {one.text for one in wrong_variants(exercise)}
    assert exercise.is_only_questions or len(texts | {exercise.solution.read_text()}) >= 3


def test_goal_bounds_as_text_and_as_test() -> None:
    assert Goal("spills", "", at_most=0).wanted == "≤ 0"
    assert Goal("launches", "", at_most=1, at_least=1).wanted == "= 1"
    assert Goal("launches", "", at_most=1, at_least=1).met_by(1)
    assert not Goal("occupancy", "", at_least=0.5).met_by(0.4)


def test_course_order_follows_needs() -> None:
    catalogue = Catalogue()
    order = list(catalogue)
    assert order[:2] == ["vector-add", "masks"]
    for exercise in catalogue.values():
        assert all(order.index(needed) < order.index(exercise.id) for needed in exercise.needs)


def test_private_set_follows_the_course(folder: Path) -> None:
    mine = folder.rename(folder.with_name("my-add"))
    path = mine / "exercise.toml"
    path.write_text(path.read_text().replace('"vector-add"', '"my-add"').replace('"beginner"', '"ours"'))
    catalogue = Catalogue([mine.parent])
    assert list(catalogue)[-1] == "my-add"
    assert list(catalogue.tracks())[-1] == "ours"


def test_invalid_sets_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExerciseError, match="has the same id"):
        Catalogue([folder.parent])
    with pytest.raises(ExerciseError, match="folder of exercises does not exist"):
        Catalogue([tmp_path / "nowhere"])
    with pytest.raises(ExerciseError, match="so there is no exercise"):
        Catalogue([folder])
    with pytest.raises(ExerciseError, match="no exercise is called 'vectoradd'"):
        Catalogue()["vectoradd"]


@pytest.mark.parametrize(
    ("needs", "said"),
    [('["nothing"]', "needs 'nothing', but no exercise has this id"), ('["my-add"]', "need each other")],
)
def test_unknown_or_circular_needs_are_refused(folder: Path, needs: str, said: str) -> None:
    mine = folder.rename(folder.with_name("my-add"))
    path = mine / "exercise.toml"
    path.write_text(path.read_text().replace('"vector-add"', '"my-add"').replace("needs = []", f"needs = {needs}"))
    with pytest.raises(ExerciseError, match=said):
        Catalogue([mine.parent])


def test_effort_names_time_difficulty_and_needs() -> None:
    assert load_exercise(BUILT_IN / "vector-add").effort == "about 15 minutes, easy"
    assert load_exercise(BUILT_IN / "masks").effort.endswith(", after vector-add")
