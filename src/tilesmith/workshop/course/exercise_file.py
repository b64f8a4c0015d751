"""Reading an exercise's folder: `exercise.toml`, validated key by key, and the files that must lie beside it.

`docs/workshop-authors.md` documents every key. Every error is one line that names the file and the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilesmith.workshop.course.exercise import (
    STAGES,
    CommonMistake,
    Exercise,
    ExerciseError,
    Goal,
    Question,
    Size,
    Sweep,
)
from tilesmith.workshop.course.toml_table import Table, read_toml


def load_exercise(folder: Path) -> Exercise:
    """Return the exercise in a folder. Raises ExerciseError with one line for any mistake in it."""
    path = folder / "exercise.toml"
    exercise = _read(Table(read_toml(path), str(path)), folder)
    needed = [exercise.page]
    if not exercise.is_only_questions:
        meaning = "harness.cu" if exercise.is_cuda else "checks.py" if exercise.is_program else "meaning.py"
        needed += [exercise.starter, exercise.solution, folder / meaning]
    needed += [folder / "quiz.py"] if exercise.questions or exercise.is_only_questions else []
    for file in needed:
        if not file.is_file():
            raise ExerciseError(f"{folder}: there is no {file.name} in this folder")
    if exercise.twin is not None and not (folder.parent / exercise.twin / "exercise.toml").is_file():
        raise ExerciseError(f"{path}: the twin is {exercise.twin!r}, but no exercise with this id lies beside it")
    return exercise


def _read(table: Table, folder: Path) -> Exercise:
    spec, cuda, program = (table.take(kind, dict) for kind in ("spec", "cuda", "program"))
    if sum(one is not None for one in (spec, cuda, program)) > 1:
        raise ExerciseError(f"{table.where}: the exercise has more than one of spec, cuda and program")
    meaning: dict[str, Any] = {} if spec is None else _meaning(Table(spec, f"{table.where}: spec"), table)
    if program is not None:
        meaning |= _program(Table(program, f"{table.where}: program"))
    exercise = Exercise(
        folder=folder,
        id=table.take("id", str, needed=True),
        title=table.take("title", str, needed=True),
        track=table.take("track", str, needed=True),
        needs=table.texts("needs"),
        starter_fails=table.take("starter_fails", str, "parses"),
        minutes=table.take("minutes", int, 0),
        difficulty=table.take("difficulty", int, 0),
        is_cuda=cuda is not None,
        is_program=program is not None,
        twin=_twin(Table(cuda or {}, f"{table.where}: cuda")),
        goals=tuple(map(_goal, table.tables("goals"))),
        sweep=_sweep(table),
        hints=table.texts("hints"),
        questions=tuple(map(_question, table.tables("quiz"))),
        **meaning,
    )
    table.done()
    if exercise.id != folder.name:
        raise ExerciseError(f"{table.where}: the id is {exercise.id!r}, but the folder is called {folder.name!r}")
    if exercise.starter_fails not in STAGES:
        raise ExerciseError(f"{table.where}: starter_fails is {exercise.starter_fails!r}, but stages are {STAGES}")
    if exercise.minutes < 0 or exercise.difficulty not in range(4):
        raise ExerciseError(f"{table.where}: minutes is a number of minutes, and difficulty is 1, 2 or 3")
    named = {size.name for size in (*exercise.visible, *exercise.hidden)}
    for goal in exercise.goals:
        if goal.size is not None and goal.size not in named:
            raise ExerciseError(
                f"{table.where}: the goal {goal.name} names the size {goal.size!r}, which does not exist"
            )
    if exercise.is_only_questions and not exercise.questions:
        raise ExerciseError(f"{table.where}: the exercise has neither a spec nor a question")
    return exercise


def _twin(cuda: Table) -> str | None:
    twin: str | None = cuda.take("twin", str)
    cuda.done()
    return twin


def _program(program: Table) -> dict[str, Any]:
    """Return the field of an exercise whose own `checks.py` decides: the function that it calls."""
    function = program.take("function", str, needed=True)
    program.done()
    return {"function": function}


def _meaning(spec: Table, table: Table) -> dict[str, Any]:
    """Return the fields of a Triton exercise: function, sizes, dtypes and layouts."""
    visible = tuple(map(_size, table.tables("visible")))
    hidden = tuple(map(_size, table.tables("hidden")))
    if not visible or not hidden:
        raise ExerciseError(f"{table.where}: the exercise needs at least one visible and one hidden size")
    by_name = {size.name: size for size in (*hidden, *visible)}
    if len(by_name) < len(visible) + len(hidden):
        raise ExerciseError(f"{table.where}: two sizes have the same name")
    measured = spec.take("measured", str, visible[0].name)
    if measured not in by_name:
        raise ExerciseError(f"{spec.where}: measured is {measured!r}, but the sizes are {', '.join(by_name)}")
    meaning = {
        "function": spec.take("function", str, needed=True),
        "visible": visible,
        "hidden": hidden,
        "measured": by_name[measured],
        "timed": tuple(_timed(spec)),
        "dtypes": spec.texts("dtypes", ("float32",)),
        "layouts": spec.texts("layouts", ("contiguous",)),
        "differentiable": spec.take("differentiable", bool, False),
        "allow": spec.texts("allow"),
        "forbid": spec.texts("forbid"),
    }
    spec.done()
    return meaning


def _timed(spec: Table) -> Iterator[Size]:
    """Yield the timed sizes: the file has one table or a list of tables."""
    given = spec.take("timed", list | dict, [])
    for number, sizes in enumerate([given] if isinstance(given, dict) else given, 1):
        yield Size(f"timed {number}", sizes)


def _size(table: Table) -> Size:
    name, lesson = table.take("name", str, needed=True), table.take("lesson", str, "")
    return Size(name, table.rest(), lesson)


def _goal(table: Table) -> Goal:
    goal = Goal(
        metric=table.take("metric", str, needed=True),
        why=table.take("why", str, needed=True),
        at_most=table.take("at_most", float),
        at_least=table.take("at_least", float),
        argument=table.take("argument", str),
        target=table.take("target", str, "cuda:90"),
        size=table.take("size", str),
    )
    table.done()
    if goal.at_most is None and goal.at_least is None:
        raise ExerciseError(f"{table.where}: a goal needs at_most, at_least or both")
    return goal


def _sweep(table: Table) -> Sweep | None:
    content = table.take("sweep", dict)
    if content is None:
        return None
    inner = Table(content, f"{table.where}: sweep")
    sweep = Sweep(
        inner.take("constant", str, needed=True),
        tuple(inner.take("values", list, needed=True)),
        inner.texts("columns"),
    )
    inner.done()
    return sweep


def _question(table: Table) -> Question:
    between = table.take("between", list)
    question = Question(
        question=table.take("question", str, needed=True),
        answer=table.take("answer", str, needed=True),
        reply=table.take("reply", str, needed=True),
        worked=table.take("worked", str),
        between=(float(between[0]), float(between[1])) if between else None,
        within=table.take("within", float, 0.0),
        wrong=tuple(map(_common_mistake, table.tables("wrong"))),
    )
    table.done()
    if question.worked is None and question.between is None:
        raise ExerciseError(f"{table.where}: a question needs worked or between, so that a changed answer is noticed")
    return question


def _common_mistake(table: Table) -> CommonMistake:
    mistake = CommonMistake(table.take("answer", str, needed=True), table.take("reply", str, needed=True))
    table.done()
    return mistake
