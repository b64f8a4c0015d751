"""Verifying exercises for their authors.

Starters and wrong variants must fail at the declared stage, solutions must pass, and every question must have a sound
answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tilesmith.workshop.checking.verdict import QuestionAnswers
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.course.exercise_file import Expectation, expectation_of
from tilesmith.workshop.isolation.worker import Outcome, Worker
from tilesmith.workshop.quizzes.replies import question_problems

LEAST_HINTS, LEAST_QUESTIONS, LEAST_WRONG_VARIANTS = 3, 2, 2


@dataclass(frozen=True)
class Verified:
    """The problems of one exercise, and the number of programs that were run."""

    exercise: Exercise
    programs: int
    problems: tuple[str, ...]


def verify(exercises: Sequence[Exercise], jobs: int = 1) -> Iterator[Verified]:
    """Verify exercises in parallel. Yield each result as soon as it is known."""
    workers: SimpleQueue[Worker] = SimpleQueue()
    for _ in range(jobs):
        workers.put(Worker())

    def one(exercise: Exercise) -> Verified:
        worker = workers.get()
        try:
            return verify_one(exercise, worker)
        finally:
            workers.put(worker)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            for future in as_completed([pool.submit(one, exercise) for exercise in exercises]):
                yield future.result()
    finally:
        while not workers.empty():
            workers.get().close()


def verify_one(exercise: Exercise, worker: Worker) -> Verified:
    """Verify one exercise. All its programs share a process, because its author wrote them."""
    problems = list(_missing_parts(exercise))
    if exercise.is_only_questions:
        return Verified(exercise, 0, (*problems, *_questions_only_problems(exercise, worker)))
    programs = [exercise.starter, exercise.solution, *exercise.wrong_variants]
    for program in programs:
        try:
            outcome = worker.check(exercise, program, quiz=program == exercise.solution)
        except ExerciseError as error:
            problems.append(f"{_name(exercise, program)}: {error}")
            continue
        problems += [f"{_name(exercise, program)} {text}" for text in _program_problems(exercise, program, outcome)]
    return Verified(exercise, len(programs), tuple(problems))


def _questions_only_problems(exercise: Exercise, worker: Worker) -> Iterator[str]:
    try:
        yield from _quiz_problems(exercise, worker.quiz(exercise, None))
    except ExerciseError as error:
        yield str(error)


def _quiz_problems(exercise: Exercise, found: Sequence[QuestionAnswers]) -> Iterator[str]:
    for number, (question, answers) in enumerate(zip(exercise.questions, found, strict=True), 1):
        yield from (f"question {number}: {problem}" for problem in question_problems(question, answers))


def _missing_parts(exercise: Exercise) -> Iterator[str]:
    for what, number, least in (
        ("hints", len(exercise.hints), LEAST_HINTS),
        ("questions", len(exercise.questions), LEAST_QUESTIONS),
        ("wrong variants", len(exercise.wrong_variants), LEAST_WRONG_VARIANTS),
    ):
        if number < least and not (what == "wrong variants" and exercise.is_only_questions):
            yield f"has {number} {what}, but needs at least {least}"


def _program_problems(exercise: Exercise, program: Path, outcome: Outcome) -> Iterator[str]:
    verdict = outcome.verdict
    if program == exercise.solution:
        if not verdict.passed:
            yield f"must pass, but fails at {verdict.stage}: {verdict.message}"
        else:
            yield from _quiz_problems(exercise, outcome.quiz)
        return
    wanted = Expectation(exercise.starter_fails) if program == exercise.starter else expectation_of(program)
    if verdict.passed:
        yield f"must fail at {wanted.stage}, but passes"
    elif verdict.stage != wanted.stage:
        yield f"must fail at {wanted.stage}, but fails at {verdict.stage}: {verdict.message}"
    elif wanted.words not in verdict.message:
        yield f"fails at {wanted.stage}, but the message does not contain {wanted.words!r}: {verdict.message}"


def _name(exercise: Exercise, program: Path) -> str:
    return str(program.relative_to(exercise.folder))
