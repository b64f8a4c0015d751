"""Mistakes that learners make: the model solution with some of its text changed, and how its check must fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.workshop.course.exercise import STAGES, Exercise, ExerciseError
from tilesmith.workshop.course.toml_table import Table, read_toml

FILE = "wrong.toml"


@dataclass(frozen=True)
class WrongVariant:
    """A wrong program, the stage at which its check must fail, and words that the message must contain."""

    name: str
    text: str
    stage: str
    words: str


def wrong_variants(exercise: Exercise) -> tuple[WrongVariant, ...]:
    """Return the variants in `wrong.toml`. Raises ExerciseError for a mistake in that file."""
    path = exercise.folder / FILE
    return tuple(_read(exercise, read_toml(path), str(path))) if path.is_file() else ()


def _read(exercise: Exercise, content: dict[str, object], where: str) -> Iterator[WrongVariant]:
    solution = exercise.solution.read_text(encoding="utf-8")
    for name, entry in content.items():
        if not isinstance(entry, dict):
            raise ExerciseError(f"{where}: {name!r} is {entry!r}, which is not a table")
        table = Table(entry, f"{where}: {name}")
        stage, _, words = table.take("fails", str, needed=True).partition(" ")
        if stage not in STAGES:
            raise ExerciseError(f"{table.where}: 'fails' must begin with one of {', '.join(STAGES)}, not {stage!r}")
        text = solution
        for change in table.take("changes", list, needed=True):
            text = _changed(text, change, table.where)
        table.done()
        yield WrongVariant(name, text, stage, words.removeprefix("(").removesuffix(")"))


def _changed(text: str, change: object, where: str) -> str:
    match change:
        case [str(old), str(new)] if old:
            count = text.count(old)
        case _:
            raise ExerciseError(f"{where}: each of 'changes' must be [old text, new text], not {change!r}")
    if count != 1:
        raise ExerciseError(f"{where}: the solution has {old!r} {count} times, but must have it once")
    return text.replace(old, new)
