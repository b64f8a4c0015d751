"""The course as a static site: one page per exercise, with hints, questions, and a picture of the model solution."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from tilesmith.lab.inspect.output.page import write_html as picture_of
from tilesmith.storage import write_atomically
from tilesmith.workshop.checking.program_check import ProgramCheck
from tilesmith.workshop.checking.staged_check import StageFailure
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.course.catalogue import Catalogue
from tilesmith.workshop.course.exercise import Exercise, ExerciseError, Question
from tilesmith.workshop.cuda.check import CudaCheck
from tilesmith.workshop.figures.drawing import STYLE
from tilesmith.workshop.publishing.lesson_html import code_html, lesson_html
from tilesmith.workshop.quizzes.answers import compute_answers
from tilesmith.workshop.quizzes.replies import answer_text


@dataclass(frozen=True)
class _AnsweredQuestion:
    """A question with its answer, which the page hides until a click."""

    question: Question
    answer: str


_Ran = tuple[list[_AnsweredQuestion], str]  # the answered questions and the picture of a model solution


def write_site(
    catalogue: Catalogue, folder: Path, finished: Callable[[str, int, int], None] = lambda *done: None, jobs: int = 1
) -> int:
    """Write index.html and one page per exercise into a folder. Return the number of exercises.

    `finished` is called with each exercise whose solution has run, the number of these, and the number of all.
    """
    order = list(catalogue.values())
    found = _run_solutions(order, finished, jobs)
    for number, exercise in enumerate(order):
        asked, picture = found[exercise.id]
        if picture:
            write_atomically(folder / f"{exercise.id}-picture.html", picture)
        page = _environment().get_template("exercise.html").render(
            **_page(exercise.title, f"{exercise.track}: {exercise.id}; {exercise.effort}".removesuffix("; ")),
            exercise=exercise,
            text=lesson_html(exercise),
            figure_style=STYLE.read_text(encoding="utf-8"),
            starter=None if exercise.is_only_questions else _code(exercise),
            asked=asked,
            has_picture=bool(picture),
            previous=order[number - 1] if number else None,
            following=order[number + 1] if number + 1 < len(order) else None,
        )  # fmt: skip
        write_atomically(folder / f"{exercise.id}.html", page)
    index = _environment().get_template("course.html").render(
        **_page("The workshop", "From PyTorch to writing GPU kernels, on any machine."), tracks=catalogue.tracks()
    )  # fmt: skip
    write_atomically(folder / "index.html", index)
    return len(order)


def _code(exercise: Exercise) -> str:
    return code_html(exercise.starter.read_text(encoding="utf-8"), "cuda" if exercise.is_cuda else "python")


def _run_solutions(
    exercises: Sequence[Exercise], finished: Callable[[str, int, int], None], jobs: int
) -> dict[str, _Ran]:
    """Run the model solutions, several at a time in forks of one process that has imported PyTorch and Triton."""
    found: dict[str, _Ran] = {}
    if jobs == 1:
        for exercise in exercises:
            found[exercise.id] = _run_solution(exercise)
            finished(exercise.id, len(found), len(exercises))
        return found
    context = multiprocessing.get_context("forkserver")  # a fork of this process would copy the locks of its threads
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(jobs, context, _begin_worker) as pool:
        running = {pool.submit(_run_solution, exercise): exercise.id for exercise in exercises}
        for future in as_completed(running):
            found[running[future]] = future.result()
            finished(running[future], len(found), len(exercises))
    return found


def _begin_worker() -> None:
    """Let compilers print nothing, and PyTorch use one thread: the other cores run other solutions."""
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


def _run_solution(exercise: Exercise) -> _Ran:
    """Run the model solution. Return the answered questions and the picture as HTML."""
    try:
        return _answers_and_picture(exercise)
    except StageFailure as failure:
        reason = str(failure).partition("\n")[0]
        raise ExerciseError(f"{exercise.id}: the model solution fails at the stage {failure.stage}: {reason}") from None


def _answers_and_picture(exercise: Exercise) -> _Ran:
    if exercise.is_only_questions:
        return _answered_questions(exercise, None), ""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / exercise.file_name  # pictures show this name to learners
        shutil.copy(exercise.solution, file)
        if exercise.is_cuda:
            return _answered_questions(exercise, CudaCheck(exercise, file)), ""
        if exercise.is_program:
            return _answered_questions(exercise, ProgramCheck(exercise, file)), ""
        check = TritonCheck(exercise, file)
        inspection = check.measured().inspection
        return _answered_questions(exercise, check), picture_of(inspection) if inspection is not None else ""


def _answered_questions(
    exercise: Exercise, check: TritonCheck | CudaCheck | ProgramCheck | None
) -> list[_AnsweredQuestion]:
    found = compute_answers(exercise, check)
    return [
        _AnsweredQuestion(one, answer_text(one, answer)) for one, answer in zip(exercise.questions, found, strict=True)
    ]


def _page(title: str, summary: str) -> dict[str, object]:
    from tilesmith import __version__

    return {"title": title, "summary": summary, "sections": (), "provenance": {"Tilesmith": __version__}}


@cache
def _environment() -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader("tilesmith.workshop.publishing"), PackageLoader("tilesmith.lab.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
