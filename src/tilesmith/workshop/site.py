"""The course as a static site: a page for each exercise, with its hints, its questions, and the picture of what the
model solution does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from tilesmith.lab.inspect.output.page import write_html as picture_of
from tilesmith.storage import write_atomically
from tilesmith.workshop.answers import answers
from tilesmith.workshop.catalogue import Catalogue
from tilesmith.workshop.cuda_check import CudaCheck
from tilesmith.workshop.exercise import Exercise, Question
from tilesmith.workshop.quiz import revealed
from tilesmith.workshop.stages import Check


@dataclass(frozen=True)
class _Asked:
    """A question with its answer, to be unfolded."""

    question: Question
    answer: str


def write_site(catalogue: Catalogue, folder: Path, entering: Callable[[str], None] = lambda exercise: None) -> int:
    """Writes index.html and the exercises' pages into a folder. Returns how many exercises there are."""
    order = list(catalogue.values())
    for number, exercise in enumerate(order):
        entering(exercise.id)
        asked, picture = _run(exercise)
        if picture:
            write_atomically(folder / f"{exercise.id}-picture.html", picture)
        page = _environment().get_template("exercise.html").render(
            **_page(exercise.title, f"{exercise.track}: {exercise.id}"),
            exercise=exercise,
            text=_html(exercise.page.read_text(encoding="utf-8")),
            starter=None if exercise.is_only_questions else exercise.starter.read_text(encoding="utf-8"),
            asked=asked,
            has_picture=bool(picture),
            following=order[number + 1] if number + 1 < len(order) else None,
        )  # fmt: skip
        write_atomically(folder / f"{exercise.id}.html", page)
    index = _environment().get_template("course.html").render(
        **_page("The workshop", "From PyTorch to writing GPU kernels, on any machine."), tracks=catalogue.tracks()
    )  # fmt: skip
    write_atomically(folder / "index.html", index)
    return len(order)


def _run(exercise: Exercise) -> tuple[list[_Asked], str]:
    """The questions with their answers and the picture, both from running the model solution."""
    if exercise.is_only_questions:
        return _asked(exercise, None), ""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / exercise.file_name  # the name that learners know
        shutil.copy(exercise.solution, file)
        if exercise.is_cuda:
            return _asked(exercise, CudaCheck(exercise, file)), ""
        check = Check(exercise, file)
        inspection = check.measured().inspection
        return _asked(exercise, check), picture_of(inspection) if inspection is not None else ""


def _asked(exercise: Exercise, check: Check | CudaCheck | None) -> list[_Asked]:
    found = answers(exercise, check)
    return [_Asked(one, revealed(one, answer)) for one, answer in zip(exercise.questions, found, strict=True)]


def _page(title: str, summary: str) -> dict[str, object]:
    from tilesmith import __version__

    return {"title": title, "summary": summary, "sections": (), "provenance": {"Tilesmith": __version__}}


def _html(markdown: str) -> Markup:
    """A page's text, without its heading, which the page has already."""
    body = markdown.split("\n", 1)[1] if markdown.startswith("# ") else markdown
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(body))


@cache
def _environment() -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader("tilesmith.workshop"), PackageLoader("tilesmith.lab.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
