"""The learner's progress as a report for the instructor, as JSON and as Markdown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilesmith.workshop.learner.workshop_folder import Workshop


def report_data(workshop: Workshop, learner: str) -> dict[str, Any]:
    """Return the report as data, with the source of the learner's files."""
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


def report_markdown(report: dict[str, Any]) -> str:
    """Return the report as Markdown: a table, and the source of every exercise that was tried."""
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
        quiz = f"{right} of {one['questions']} right" if one["quiz"] else "not opened" if one["questions"] else "–"
        lines.append(
            f"| {one['id']} | {state} | {one['checks']} | {failed} | {one['hints']} of {one['hints_there_are']} "
            f"| {quiz} |"
        )
    for one in tried:
        if one["source"]:
            lines += ["", f"## {one['title']}", "", "```python", one["source"].rstrip(), "```"]
    return "\n".join(lines) + "\n"
