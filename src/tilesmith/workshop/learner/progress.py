"""The learner's progress: one JSON file in the workshop folder, written atomically.

If the file is damaged, the previous version replaces it, so at most the last step is lost.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from tilesmith.storage import locked, read_json, write_atomically

FILE = "progress.json"
EARLIER = "progress.earlier.json"
State = Literal["open", "attempted", "solved"]


@dataclass
class Record:
    """The progress of one exercise."""

    state: State = "open"
    checks: int = 0
    failed_stages: list[str] = field(default_factory=list)
    hints: int = 0
    tried: bool = False  # a check failed on a file that is not the starter
    gave_up: bool = False
    solved_at: str | None = None
    figures: dict[str, float] = field(default_factory=dict)  # metrics of the solution, for the chart of a ladder
    quiz: dict[str, int] = field(default_factory=dict)  # question number → guesses until right; -1 while unanswered


@dataclass
class Progress:
    """The progress of one workshop folder. `current` is the exercise last worked on."""

    exercises: dict[str, Record] = field(default_factory=dict)
    current: str | None = None

    def of(self, exercise: str) -> Record:
        return self.exercises.setdefault(exercise, Record())


def read(folder: Path) -> Progress:
    """Return the progress so far. Warns about a damaged file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        progress = _progress(read_json(folder / FILE))
        damaged = progress is None and (folder / FILE).exists()
        earlier = _progress(read_json(folder / EARLIER)) if damaged else None
    if damaged:
        kept = (
            "the state before the last step is used"
            if earlier
            else "progress starts again from zero; check your solved exercises again"
        )
        reason = f": {caught[0].message}" if caught else ""
        warnings.warn(f"{folder / FILE} is damaged, so {kept}{reason}", RuntimeWarning, stacklevel=2)
    return progress or earlier or Progress()


def is_kept_in(folder: Path) -> bool:
    """Return whether a folder is a workshop: it has a progress file, perhaps damaged, and not another program's."""
    if not (folder / FILE).is_file():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `read` warns of a damaged file
        return (folder / EARLIER).is_file() or _progress(read_json(folder / FILE)) is not None


def update(folder: Path, change: Callable[[Progress], None]) -> Progress:
    """Apply a change and save it. Raises OSError where the file cannot be written."""
    with locked(folder / FILE):
        return _updated(folder, change)


def _updated(folder: Path, change: Callable[[Progress], None]) -> Progress:
    progress = read(folder)
    before = folder / FILE
    if _progress(read_json(before) if before.exists() else None) is not None:
        write_atomically(folder / EARLIER, before.read_bytes())
    change(progress)
    write_atomically(before, json.dumps({"version": 1, **asdict(progress)}, indent=1) + "\n")
    return progress


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _progress(content: Any) -> Progress | None:
    """Return the content of a file as progress; None where the content is invalid."""
    if not isinstance(content, dict) or not isinstance(content.get("exercises"), dict):
        return None
    known = {one.name for one in fields(Record)}
    try:
        exercises = {
            name: Record(**{key: value for key, value in record.items() if key in known})
            for name, record in content["exercises"].items()
        }
    except (AttributeError, TypeError):
        return None
    wellformed = all(
        one.state in ("open", "attempted", "solved")
        and all(isinstance(number, int) for number in (one.checks, one.hints))
        and isinstance(one.failed_stages, list)
        and isinstance(one.quiz, dict)
        and isinstance(one.figures, dict)
        for one in exercises.values()
    )
    current = content.get("current")
    return Progress(exercises, current if isinstance(current, str) else None) if wellformed else None
