"""The page of an exercise as HTML."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from tilesmith.workshop.course.exercise import Exercise


def lesson_html(exercise: Exercise, page: Path | None = None) -> Markup:
    """Return the text of an exercise without its heading. `page` is the learner's copy; default: the exercise's own."""
    markdown = (page or exercise.page).read_text(encoding="utf-8")
    body = markdown.split("\n", 1)[1] if markdown.startswith("# ") else markdown
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(body))
