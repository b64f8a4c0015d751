"""The page of an exercise as HTML: its figure, then its text."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from tilesmith.workshop.course.exercise import Exercise
from tilesmith.workshop.figures.all_figures import figure_of
from tilesmith.workshop.learner.workshop_folder import FIGURE_LINE


def lesson_html(exercise: Exercise, page: Path | None = None) -> Markup:
    """Return the page of an exercise without its heading. `page` is the learner's copy; default: the exercise's own."""
    markdown = (page or exercise.page).read_text(encoding="utf-8")
    body = markdown.split("\n", 1)[1] if markdown.startswith("# ") else markdown
    options = {"html": False, "highlight": _highlighted}
    text = Markup(MarkdownIt("commonmark", options).enable("table").render(body.replace(FIGURE_LINE, "", 1)))
    figure = figure_of(exercise.id)
    return text if figure is None else figure.html(f"figure-{exercise.id}") + text


def code_html(code: str, language: str = "python") -> Markup:
    """Return code as HTML, with a class for each kind of token."""
    lexer = get_lexer_by_name(language, stripnl=False)
    return Markup(highlight(code, lexer, HtmlFormatter(nowrap=True)))


def _highlighted(code: str, language: str, attributes: str) -> str:
    """Return a block of a page; one without a language is a command or a formula, and stays as it is."""
    try:
        return str(code_html(code, language)) if language else ""  # Markup would escape the tags around it
    except ClassNotFound:
        return ""
