"""The progress of a class, from the reports that learners hand in (`tilesmith learn export`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilesmith.workshop.course.catalogue import Catalogue

LARGEST = 20 << 20  # bytes


def class_progress(folder: Path, catalogue: Catalogue) -> dict[str, Any]:
    """Return one row per handed-in report, and the files that are no report, each with the reason."""
    learners, refused = [], []
    for file in sorted(folder.rglob("*.json")):
        try:
            learners.append(_learner(file, folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            refused.append({"file": str(file.relative_to(folder)), "reason": _reason(error)})
    exercises = [
        {"id": one.id, "title": one.title, "track": one.track, "questions": len(one.questions)}
        for one in catalogue.values()
    ]
    return {"folder": str(folder), "exercises": exercises, "learners": learners, "refused": refused}


def _learner(file: Path, folder: Path) -> dict[str, Any]:
    if file.stat().st_size > LARGEST:
        raise ValueError(f"larger than {LARGEST >> 20} MiB")
    report = json.loads(file.read_text(encoding="utf-8"))
    exercises = {one["id"]: _exercise(one) for one in report["exercises"]}
    return {
        "learner": str(report["learner"] or file.stem),
        "file": str(file.relative_to(folder)),
        "solved": sum(one["state"] == "solved" for one in exercises.values()),
        "of": len(exercises),
        "exercises": {name: one for name, one in exercises.items() if one["state"] != "open" or one["checks"]},
    }


def _exercise(one: dict[str, Any]) -> dict[str, Any]:
    if one["state"] not in ("open", "attempted", "solved"):
        raise ValueError(f"{one['id']} has the state {one['state']!r}")
    source = one.get("source")
    return {
        "state": one["state"],
        "checks": int(one["checks"]),
        "hints": int(one["hints"]),
        "gave_up": bool(one["gave_up"]),
        "failed_stages": [str(stage) for stage in one["failed_stages"]],
        "answered": sum(int(guesses) > 0 for guesses in one["quiz"].values()),
        "source": source if isinstance(source, str) else None,
    }


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "not JSON"
    if isinstance(error, KeyError | TypeError | AttributeError):
        return "not a report of `tilesmith learn export`"
    return str(error)
