"""`%%check ID` in Jupyter: the cell is the learner's file, checked as `tilesmith learn check` does.

%load_ext tilesmith.workshop.notebook
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tilesmith.workshop.catalogue import Catalogue
from tilesmith.workshop.exercise import Exercise, ExerciseError
from tilesmith.workshop.folder import Workshop
from tilesmith.workshop.worker import Outcome, Worker

DEFAULT_FOLDER = "tilesmith-workshop"


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext`."""
    shell.register_magic_function(check, "cell", "check")


def check(line: str, cell: str) -> None:
    """Checks the cell as an exercise's file: %%check ID. Progress is kept as for files; no file of yours is touched."""
    workshop = Workshop(Path(os.environ.get("TILESMITH_WORKSHOP", DEFAULT_FOLDER)), Catalogue())
    try:
        exercise = workshop.chosen(line.strip() or None)
        with tempfile.TemporaryDirectory() as scratch, Worker() as worker:
            file = Path(scratch) / exercise.file_name
            file.write_text(cell, encoding="utf-8")
            outcome = worker.check(exercise, file)
    except ExerciseError as error:
        print(f"%%check: {error}")
        return
    workshop.note_check(exercise, outcome.verdict, cell.encode())
    print(_told(exercise, outcome))


def _told(exercise: Exercise, outcome: Outcome) -> str:
    verdict = outcome.verdict
    reached = exercise.stages_until(verdict.stage)
    failed = None if verdict.passed else verdict.stage
    lines = [outcome.printed.rstrip()] if outcome.printed.strip() else []
    lines.append(f"{verdict.id}: " + "  ".join(f"{'✗' if stage == failed else '✓'} {stage}" for stage in reached))
    lines += [f"  {goal.name}: {goal.value:.4g} (wanted {goal.wanted})" for goal in verdict.goals]
    lines += verdict.speed
    return "\n".join([*lines, *([verdict.message] if verdict.message else [])])
