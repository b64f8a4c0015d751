"""The mutants that an exercise's author has listed as equivalent: `mutants.toml` beside `exercise.toml`."""

from __future__ import annotations

from pathlib import Path

from tilesmith.workshop.course.exercise import ExerciseError
from tilesmith.workshop.course.toml_table import read_toml


def known_equivalents(folder: Path) -> dict[str, str]:
    """Return the reason for each listed mutant, by name. Without the file there are none."""
    path = folder / "mutants.toml"
    if not path.is_file():
        return {}
    reasons: dict[str, str] = {}
    for entry in read_toml(path).get("equivalent", []):
        names, reason = entry.get("mutants"), entry.get("reason")
        if set(entry) != {"mutants", "reason"} or not isinstance(names, list) or not isinstance(reason, str):
            raise ExerciseError(f"{path}: every [[equivalent]] has `mutants`, a list of names, and `reason`, a text")
        reasons |= dict.fromkeys(names, reason)
    return reasons
