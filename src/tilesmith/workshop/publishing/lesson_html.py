"""The page of an exercise as HTML: its figure, then its text."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from tilesmith.workshop.course.exercise import Exercise
from tilesmith.workshop.figures.all_figures import figure_of
from tilesmith.workshop.learner.workshop_folder import FIGURE_LINE


def lesson_html(exercise: Exercise, page: Path | None = None) -> Markup:
    """Return the page of an exercise without its heading. `page` is the learner's copy; default: the exercise's own."""
    markdown = (page or exercise.page).read_text(encoding="utf-8")
    body = markdown.split("\n", 1)[1] if markdown.startswith("# ") else markdown
    text = Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(body.replace(FIGURE_LINE, "", 1)))
    figure = figure_of(exercise.id)
    return text if figure is None else figure.html(f"figure-{exercise.id}") + text
