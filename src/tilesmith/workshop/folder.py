"""The learner's folder: one folder per exercise with its page and the file to work in. Work is never overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tilesmith.storage import write_atomically
from tilesmith.workshop import progress
from tilesmith.workshop.catalogue import Catalogue
from tilesmith.workshop.exercise import Exercise, ExerciseError
from tilesmith.workshop.progress import Progress, Record, State
from tilesmith.workshop.verdict import Table, Verdict


@dataclass(frozen=True)
class Workshop:
    """One learner's workshop: a folder, and the exercises to choose from."""

    folder: Path
    catalogue: Catalogue

    def progress(self) -> Progress:
        return progress.read(self.folder)

    def state(self, exercise: Exercise) -> State:
        return self.progress().of(exercise.id).state

    def file_of(self, exercise: Exercise) -> Path:
        return self.folder / exercise.id / exercise.file_name

    def page_of(self, exercise: Exercise) -> Path:
        """The learner's own copy of the page."""
        return self.folder / exercise.id / "page.md"

    def start(self, exercise: Exercise) -> bool:
        """Copies an exercise, but for what is there already; False where its file is. It is the current one then."""
        page = self.page_of(exercise)
        if not page.exists():
            write_atomically(page, exercise.page.read_bytes())
        file = self.file_of(exercise)
        fresh = not file.exists()
        if fresh and not exercise.is_only_questions:
            write_atomically(file, exercise.starter.read_bytes())
        self._update(exercise, lambda record: None)
        return fresh

    def reset(self, exercise: Exercise) -> Path | None:
        """Puts the starter back; where the work that was there is kept, if there was any."""
        if exercise.is_only_questions:
            self._update(exercise, _forget)
            return None
        file, kept = self.file_of(exercise), None
        if file.exists() and file.read_bytes() != exercise.starter.read_bytes():
            kept = next(_free_names(file))
            file.rename(kept)
        write_atomically(file, exercise.starter.read_bytes())
        self._update(exercise, _forget)
        return kept

    def chosen(self, name: str | None) -> Exercise:
        """The exercise of this name, or the one that was last worked on."""
        name = name or self.progress().current
        if name is None:
            first = next(iter(self.catalogue))
            raise ExerciseError(f"no exercise is started yet; begin with `tilesmith learn start {first}`")
        return self.catalogue[name]

    def started(self, name: str | None) -> tuple[Exercise, Path]:
        """The exercise and its file, which must be there."""
        exercise = self.chosen(name)
        file = self.file_of(exercise)
        if not file.is_file() and not exercise.is_only_questions:
            raise ExerciseError(f"there is no {file}; `tilesmith learn start {exercise.id}` puts it there")
        return exercise, file

    def next_open(self) -> Exercise | None:
        """The first exercise of the course that is not solved and whose needs are."""
        kept = self.progress()
        for exercise in self.catalogue.values():
            ready = all(kept.of(needed).state == "solved" for needed in exercise.needs)
            if ready and kept.of(exercise.id).state != "solved":
                return exercise
        return None

    def verdict_of_questions(self, exercise: Exercise) -> Verdict:
        """An exercise of questions alone is passed when all have been answered."""
        guesses = self.progress().of(exercise.id).quiz
        right = sum(guesses.get(str(number), -1) > 0 for number in range(1, len(exercise.questions) + 1))
        if right == len(exercise.questions):
            return Verdict(exercise.id, True, "goals", "")
        message = (
            f"{right} of {len(exercise.questions)} questions are answered; `tilesmith learn quiz {exercise.id}` asks."
        )
        return Verdict(exercise.id, False, "goals", message)

    def note_check(self, exercise: Exercise, verdict: Verdict, source: bytes) -> None:
        """Keeps what a check of this source came to."""
        untouched = not exercise.is_only_questions and source == exercise.starter.read_bytes()

        def change(record: Record) -> None:
            record.checks += 1
            if verdict.passed:
                record.state, record.solved_at = "solved", record.solved_at or progress.now()
                return
            record.failed_stages.append(verdict.stage)
            record.tried = record.tried or not untouched
            record.state = "attempted" if record.state == "open" else record.state

        self._update(exercise, change)
        if verdict.table:
            _fill_in(self.page_of(exercise), verdict.table)

    def next_hint(self, exercise: Exercise) -> int:
        """How many hints to show: one more than last time, as long as there are any."""

        def change(record: Record) -> None:
            record.hints = min(record.hints + 1, len(exercise.hints))

        return self._update(exercise, change).hints

    def may_see_solution(self, exercise: Exercise, give_up: bool) -> bool:
        record = self.progress().of(exercise.id)
        allowed = give_up or record.tried or record.gave_up or record.state == "solved"
        if allowed and record.state != "solved":
            self._update(exercise, _give_up)
        return allowed

    def note_guess(self, exercise: Exercise, question: int, guesses: int, right: bool) -> None:
        def change(record: Record) -> None:
            record.quiz[str(question)] = guesses if right else -1

        self._update(exercise, change)

    def _update(self, exercise: Exercise, change: Callable[[Record], None]) -> Record:
        def changed(kept: Progress) -> None:
            kept.current = exercise.id
            change(kept.of(exercise.id))

        return progress.update(self.folder, changed).of(exercise.id)


def _fill_in(page: Path, table: Table) -> None:
    """Puts a table in the place of the one that has the same first heading, where the learner's page has such a one."""
    if not page.is_file():
        return
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(f"| {table[0][0]} |")), None)
    if start is None:
        return
    end = next((number for number in range(start, len(lines)) if not lines[number].startswith("|")), len(lines))
    rows = [f"| {' | '.join(row)} |" for row in table]
    lines[start:end] = [rows[0], "|---" * len(table[0]) + "|", *rows[1:]]
    write_atomically(page, ("\n".join(lines) + "\n").encode())


def _free_names(file: Path) -> Iterator[Path]:
    number = 1
    while True:
        name = file.with_name(f"{file.stem}.before-reset-{number}{file.suffix}")
        if not name.exists():
            yield name
        number += 1


def _forget(record: Record) -> None:
    record.state = "open"
    record.tried = False
    record.quiz = {}


def _give_up(record: Record) -> None:
    record.gave_up = True
