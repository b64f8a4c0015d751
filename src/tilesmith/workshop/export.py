"""A learner's progress as a report for the instructor: as data, and to read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilesmith.workshop.folder import Workshop


def as_data(workshop: Workshop, learner: str) -> dict[str, Any]:
    """Everything, the learner's files included."""
    from tilesmith import __version__

    kept = workshop.progress()
    exercises = []
    for exercise in workshop.catalogue.values():
        file = workshop.file_of(exercise)
        exercises.append(
            {
                "id": exercise.id,
                "title": exercise.title,
                "track": exercise.track,
                "hints_there_are": len(exercise.hints),
                "questions": len(exercise.questions),
                **asdict(kept.of(exercise.id)),
                "source": file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None,
            }
        )
    solved = sum(one["state"] == "solved" for one in exercises)
    return {
        "tilesmith": __version__, "learner": learner, "solved": solved, "of": len(exercises), "exercises": exercises,
    }  # fmt: skip


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page: a table, and the files of what was tried."""
    lines = [
        f"# {report['learner'] or 'Workshop'}: {report['solved']} of {report['of']} solved",
        "",
        "| exercise | state | checks | failed at | hints | quiz |",
        "|---|---|---|---|---|---|",
    ]
    tried = [one for one in report["exercises"] if one["checks"] or one["source"]]
    for one in tried:
        failed = ", ".join(dict.fromkeys(one["failed_stages"])) or "–"
        state = one["state"] + (", saw the solution" if one["gave_up"] else "")
        right = sum(guesses > 0 for guesses in one["quiz"].values())
        lines.append(
            f"| {one['id']} | {state} | {one['checks']} | {failed} | {one['hints']} of {one['hints_there_are']} "
            f"| {right} of {one['questions']} right |"
        )
    for one in tried:
        if one["source"]:
            lines += ["", f"## {one['title']}", "", "```python", one["source"].rstrip(), "```"]
    return "\n".join(lines) + "\n"
