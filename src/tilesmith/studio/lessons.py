"""An exercise and the map of the course as JSON."""

from __future__ import annotations

import re
from typing import Any

from tilesmith.studio.kernel_files import content_of
from tilesmith.workshop.course.exercise import STAGES, Exercise
from tilesmith.workshop.learner.progress import Progress
from tilesmith.workshop.learner.workshop_folder import Workshop
from tilesmith.workshop.publishing.lesson_html import lesson_html

_RUNG = re.compile(r"(.+)-(\d+)$")


def course(workshop: Workshop) -> dict[str, Any]:
    """Return the map: every exercise by track, the progress, and the ladders."""
    kept = workshop.progress()
    following = workshop.next_open()
    exercises = [_entry(exercise, kept) for exercise in workshop.catalogue.values()]
    begun = kept.current if kept.current in workshop.catalogue else None
    return {
        "folder": str(workshop.folder),
        "current": begun if begun is not None and kept.of(begun).state != "solved" else None,
        "next": following.id if following else None,
        "solved": sum(one["state"] == "solved" for one in exercises),
        "tracks": {track: [one for one in exercises if one["track"] == track] for track in workshop.catalogue.tracks()},
        "ladders": _ladders(exercises),
    }


def _entry(exercise: Exercise, kept: Progress) -> dict[str, Any]:
    record = kept.of(exercise.id)
    return {
        "id": exercise.id,
        "title": exercise.title,
        "track": exercise.track,
        "needs": list(exercise.needs),
        "unmet": [one for one in exercise.needs if kept.of(one).state != "solved"],
        "state": record.state,
        "checks": record.checks,
        "figures": record.figures,
        "minutes": exercise.minutes,
        "difficulty": exercise.difficulty,
        "questions": len(exercise.questions),
        "answered": _answered(exercise, record.quiz),
    }


def _answered(exercise: Exercise, quiz: dict[str, int]) -> int:
    return sum(quiz.get(str(number), -1) > 0 for number in range(1, len(exercise.questions) + 1))


def _ladders(exercises: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the exercises whose ids differ only in a number at the end, such as gemm-0 to gemm-4."""
    ladders: dict[str, list[dict[str, Any]]] = {}
    for one in exercises:
        if found := _RUNG.match(one["id"]):
            ladders.setdefault(found[1], []).append(one)
    return {name: rungs for name, rungs in ladders.items() if len(rungs) > 1}


def lesson(workshop: Workshop, exercise: Exercise) -> dict[str, Any]:
    """Return what the page shows of one exercise. Its files must exist."""
    kept = workshop.progress()
    record = kept.of(exercise.id)
    order = list(workshop.catalogue)
    place = order.index(exercise.id)
    file = workshop.file_of(exercise)
    content = content_of(file)
    return {
        **_entry(exercise, kept),
        "html": str(lesson_html(exercise, workshop.page_of(exercise))),
        "file": None if exercise.is_only_questions else str(file),
        "language": "cuda" if exercise.is_cuda else "python",
        "text": content.text,
        "version": content.version,
        "stages": [] if exercise.is_only_questions else exercise.stages_until(STAGES[4]),
        "goals": [{"name": goal.name, "wanted": goal.wanted, "why": goal.why} for goal in exercise.goals],
        "hints": list(exercise.hints[: record.hints]),
        "hints_there_are": len(exercise.hints),
        "quiz": [
            {"question": one.question, "right": record.quiz.get(str(number), -1) > 0}
            for number, one in enumerate(exercise.questions, 1)
        ],
        "previous": order[place - 1] if place else None,
        "following": order[place + 1] if place + 1 < len(order) else None,
    }
