"""The thread that checks exercises in the warm worker, one after another."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilesmith.studio.events import Events
from tilesmith.studio.kernel_files import content_of
from tilesmith.workshop.checking.verdict import QuestionAnswers, Verdict
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.isolation.worker import Outcome, Worker
from tilesmith.workshop.learner.workshop_folder import Workshop
from tilesmith.workshop.quizzes.replies import reply_to


@dataclass
class Checked:
    """The last check of an exercise: what the page shows beside the editor."""

    version: str
    verdict: Verdict
    printed: str
    seconds: float
    lines: list[int]  # the lines of the learner's file that the message names
    stages: list[str]
    picture: str = field(default="", repr=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version, **self.verdict.as_json(), "printed": self.printed, "lines": self.lines,
            "seconds": round(self.seconds, 2), "stages": self.stages, "picture": bool(self.picture),
        }  # fmt: skip


class Checks:
    """Checks files and answers quizzes in one worker. Results go to every tab as events."""

    def __init__(self, workshop: Workshop, events: Events) -> None:
        self.last: dict[str, Checked] = {}
        self._workshop = workshop
        self._events = events
        self._worker = Worker(warm=True)
        self._answers: dict[tuple[str, str], tuple[QuestionAnswers, ...]] = {}
        self._guesses: dict[tuple[str, int], int] = {}
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._queued: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="checks", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._waiting.put(self._worker.start)

    def close(self) -> None:
        self._waiting.put(None)
        self._worker.close()

    @property
    def worker_process(self) -> int | None:
        """Return the id of the worker's process, if it runs."""
        return self._worker.process_id

    def check(self, exercise: Exercise) -> None:
        """Check an exercise soon. A check that already waits serves this request too."""
        if exercise.id in self._queued:
            return
        self._queued.add(exercise.id)
        self._events.publish("stage", exercise=exercise.id, stage="waiting")
        self._waiting.put(lambda: self._check(exercise))

    def answer(self, exercise: Exercise, question: int, guess: float) -> None:
        """Reply to a guess soon, with an event."""
        self._waiting.put(lambda: self._reply(exercise, question, guess))

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            try:
                job()
            except (ExerciseError, OSError) as error:
                self._events.publish("trouble", message=str(error))

    def _check(self, exercise: Exercise) -> None:
        self._queued.discard(exercise.id)
        began = time.monotonic()
        file = self._workshop.file_of(exercise)
        picture = ""
        try:
            if exercise.is_only_questions:
                source, version = b"", ""
                outcome = Outcome(self._workshop.verdict_of_questions(exercise))
            else:
                source, version = file.read_bytes(), content_of(file).version
                outcome, picture = self._outcome(exercise, file)
        except (ExerciseError, OSError) as error:
            self._events.publish("verdict", exercise=exercise.id, trouble=str(error))
            return
        self._workshop.note_check(exercise, outcome.verdict, source)
        verdict = outcome.verdict
        if outcome.figures:
            self._workshop.note_figures(exercise, outcome.figures)
        lines = verdict.lines(file.name)
        stages = exercise.stages_until(verdict.stage)
        checked = Checked(version, verdict, outcome.printed, time.monotonic() - began, lines, stages, picture)
        self.last[exercise.id] = checked
        self._events.publish("verdict", exercise=exercise.id, checked=checked.as_json())

    def _outcome(self, exercise: Exercise, file: Path) -> tuple[Outcome, str]:
        def entering(stage: str) -> None:
            self._events.publish("stage", exercise=exercise.id, stage=stage)

        with tempfile.TemporaryDirectory(prefix="studio-") as scratch:
            page = Path(scratch) / "picture.html"
            outcome = self._worker.check(exercise, file, entering=entering, picture=page)
            return outcome, page.read_text(encoding="utf-8") if page.is_file() else ""

    def _reply(self, exercise: Exercise, question: int, guess: float) -> None:
        key = (exercise.id, question)
        try:
            answers = self._answers_of(exercise)
            reply = reply_to(exercise.questions[question - 1], answers[question - 1], guess)
        except ExerciseError as error:
            self._events.publish("reply", exercise=exercise.id, question=question, right=False, text=str(error))
            return
        self._guesses[key] = self._guesses.get(key, 0) + 1
        before = self._workshop.progress().of(exercise.id).quiz.get(str(question), -1)
        if before < 1:  # a question that was answered stays answered
            self._workshop.note_guess(exercise, question, self._guesses[key], reply.right)
        self._events.publish("reply", exercise=exercise.id, question=question, right=reply.right, text=reply.text)
        if exercise.is_only_questions and reply.right:
            self._check(exercise)

    def _answers_of(self, exercise: Exercise) -> tuple[QuestionAnswers, ...]:
        """Return the answers: counted in the learner's kernel once it is solved, else in the model solution."""
        own = self._workshop.state(exercise) == "solved" and self._workshop.file_of(exercise).is_file()
        file = self._workshop.file_of(exercise) if own else exercise.solution
        key = (exercise.id, "" if exercise.is_only_questions else content_of(file).version)
        if key not in self._answers:
            self._answers[key] = self._worker.quiz(exercise, None if exercise.is_only_questions else file)
        return self._answers[key]
