"""The `%%check ID` magic for Jupyter: checks the cell as `tilesmith learn check` checks a file.

%load_ext tilesmith.workshop.notebook
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tilesmith.workshop.course.catalogue import Catalogue
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.isolation.worker import Outcome, Worker
from tilesmith.workshop.learner.workshop_folder import Workshop

DEFAULT_FOLDER = "tilesmith-workshop"


def load_ipython_extension(shell: Any) -> None:
    """Register the magic. `%load_ext` calls this function."""
    shell.register_magic_function(check, "cell", "check")


def check(line: str, cell: str) -> None:
    """Check the cell as the file of an exercise: %%check ID. Saves the progress, but touches no file of yours."""
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
    print(_report(exercise, outcome))


def _report(exercise: Exercise, outcome: Outcome) -> str:
    verdict = outcome.verdict
    reached = exercise.stages_until(verdict.stage)
    failed = None if verdict.passed else verdict.stage
    lines = [outcome.printed.rstrip()] if outcome.printed.strip() else []
    lines.append(f"{verdict.id}: " + "  ".join(f"{'✗' if stage == failed else '✓'} {stage}" for stage in reached))
    lines += [f"  {goal.name}: {goal.value:.4g} (wanted {goal.wanted})" for goal in verdict.goals]
    lines += verdict.speed
    return "\n".join([*lines, *([verdict.message] if verdict.message else [])])
