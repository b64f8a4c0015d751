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
from tempfile import TemporaryDirectory

from tilesmith.storage import write_atomically
from tilesmith.workshop.checking.verdict import QuestionAnswers, Verdict
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.course.wrong_variants import FILE, WrongVariant, wrong_variants
from tilesmith.workshop.isolation.worker import Worker
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
    problems: list[str] = []
    variants: tuple[WrongVariant, ...] = ()
    try:
        variants = wrong_variants(exercise)
    except ExerciseError as error:
        problems.append(str(error))
    problems += _missing_parts(exercise, len(variants))
    if exercise.is_only_questions:
        return Verified(exercise, 0, (*problems, *_questions_only_problems(exercise, worker)))
    for program in (exercise.starter, exercise.solution):
        problems += _program_problems(exercise, program, worker)
    with TemporaryDirectory() as folder:
        program = Path(folder) / exercise.file_name
        for variant in variants:
            write_atomically(program, variant.text)
            problems += _wrong_variant_problems(exercise, variant, program, worker)
    return Verified(exercise, 2 + len(variants), tuple(problems))


def _questions_only_problems(exercise: Exercise, worker: Worker) -> Iterator[str]:
    try:
        yield from _quiz_problems(exercise, worker.quiz(exercise, None))
    except ExerciseError as error:
        yield str(error)


def _quiz_problems(exercise: Exercise, found: Sequence[QuestionAnswers]) -> Iterator[str]:
    for number, (question, answers) in enumerate(zip(exercise.questions, found, strict=True), 1):
        yield from (f"question {number}: {problem}" for problem in question_problems(question, answers))


def _missing_parts(exercise: Exercise, variants: int) -> Iterator[str]:
    for what, number, least in (
        ("hints", len(exercise.hints), LEAST_HINTS),
        ("questions", len(exercise.questions), LEAST_QUESTIONS),
        ("wrong variants", variants, LEAST_WRONG_VARIANTS),
    ):
        if number < least and not (what == "wrong variants" and exercise.is_only_questions):
            yield f"has {number} {what}, but needs at least {least}"


def _program_problems(exercise: Exercise, program: Path, worker: Worker) -> Iterator[str]:
    is_solution = program == exercise.solution
    try:
        outcome = worker.check(exercise, program, quiz=is_solution)
    except ExerciseError as error:
        yield f"{program.name}: {error}"
        return
    verdict = outcome.verdict
    if not is_solution:
        found = _failure_problems(verdict, exercise.starter_fails, "")
    elif not verdict.passed:
        found = iter([f"must pass, but fails at {verdict.stage}: {verdict.message}"])
    else:
        found = _quiz_problems(exercise, outcome.quiz)
    yield from (f"{program.name} {text}" for text in found)


def _wrong_variant_problems(exercise: Exercise, variant: WrongVariant, program: Path, worker: Worker) -> Iterator[str]:
    name = f"{variant.name} of {FILE}"
    try:
        verdict = worker.check(exercise, program).verdict
    except ExerciseError as error:
        yield f"{name}: {error}"
        return
    yield from (f"{name} {text}" for text in _failure_problems(verdict, variant.stage, variant.words))


def _failure_problems(verdict: Verdict, stage: str, words: str) -> Iterator[str]:
    if verdict.passed:
        yield f"must fail at {stage}, but passes"
    elif verdict.stage != stage:
        yield f"must fail at {stage}, but fails at {verdict.stage}: {verdict.message}"
    elif words not in verdict.message:
        yield f"fails at {stage}, but the message does not contain {words!r}: {verdict.message}"
