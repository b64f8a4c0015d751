"""The learner's folder: a subfolder per exercise with its page and the file to work in.

Nothing here overwrites the learner's work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tilesmith.storage import write_atomically
from tilesmith.workshop.checking.verdict import Table, Verdict
from tilesmith.workshop.course.catalogue import Catalogue
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.figures.all_figures import figure_of
from tilesmith.workshop.learner import progress
from tilesmith.workshop.learner.progress import Progress, Record, State

FIGURE = "figure.svg"
FIGURE_LINE = f"\n![The figure of this page; the studio shows its steps.]({FIGURE})\n"


def nearest_workshop(default: Path) -> Path:
    """Return the workshop that the current folder is in, or that lies in it or in a folder above; else the default."""
    here = Path.cwd()
    for place in (here, *here.parents):
        for folder in (place, place / default):
            if progress.is_kept_in(folder):
                return default if folder == here / default else folder
    return default


@dataclass(frozen=True)
class Workshop:
    """One learner's workshop: a folder and a catalogue of exercises."""

    folder: Path
    catalogue: Catalogue

    def progress(self) -> Progress:
        return progress.read(self.folder)

    def state(self, exercise: Exercise) -> State:
        return self.progress().of(exercise.id).state

    def file_of(self, exercise: Exercise) -> Path:
        return self.folder / exercise.id / exercise.file_name

    def page_of(self, exercise: Exercise) -> Path:
        """Return the learner's copy of the page."""
        return self.folder / exercise.id / "page.md"

    def start(self, exercise: Exercise) -> bool:
        """Copy the files of an exercise that are missing and make it current. Return whether the file was missing."""
        page = self.page_of(exercise)
        if not page.exists():
            _write_page(exercise, page)
        file = self.file_of(exercise)
        fresh = not file.exists()
        if fresh and not exercise.is_only_questions:
            write_atomically(file, exercise.starter.read_bytes())
        self._update(exercise, lambda record: None)
        return fresh

    def reset(self, exercise: Exercise) -> Path | None:
        """Restore the starter. Return the path of the saved work; None where there was none."""
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
        """Return the exercise of this id; by default that of the current folder, else the one last worked on."""
        name = name or self._exercise_of_current_folder() or self.progress().current
        if name is None:
            first = next(iter(self.catalogue))
            raise ExerciseError(f"you have not started an exercise; begin with `tilesmith learn start {first}`")
        return self.catalogue[name]

    def _exercise_of_current_folder(self) -> str | None:
        here, folder = Path.cwd(), self.folder.resolve()
        inside = here.relative_to(folder).parts[:1] if here.is_relative_to(folder) else ()
        return next((name for name in inside if name in self.catalogue), None)

    def unmet_needs(self, exercise: Exercise) -> list[Exercise]:
        """Return the exercises that this one needs and that are not solved."""
        kept = self.progress()
        return [self.catalogue[name] for name in exercise.needs if kept.of(name).state != "solved"]

    def answered_by_starter(self, exercise: Exercise) -> Exercise | None:
        """Return an unsolved exercise whose solution is this exercise's starter; None where there is none."""
        if exercise.is_only_questions or self.file_of(exercise).exists():
            return None
        starter = exercise.starter.read_text(encoding="utf-8").strip()
        needed = (one for one in self.unmet_needs(exercise) if not one.is_only_questions)
        return next((one for one in needed if one.solution.read_text(encoding="utf-8").strip() == starter), None)

    def started(self, name: str | None) -> tuple[Exercise, Path]:
        """Return the exercise and its file. Raises ExerciseError where the file does not exist."""
        exercise = self.chosen(name)
        file = self.file_of(exercise)
        if not file.is_file() and not exercise.is_only_questions:
            raise ExerciseError(f"{file} does not exist; `tilesmith learn start {exercise.id}` creates it")
        return exercise, file

    def next_open(self) -> Exercise | None:
        """Return the next unsolved exercise whose needed exercises are all solved; None where there is none.

        The exercises after the current one in its track come first, then the rest of the track, then the course.
        """
        kept, order = self.progress(), list(self.catalogue.values())
        current = next((one for one in order if one.id == kept.current), order[0])
        at = order.index(current)
        track = [one for one in (*order[at + 1 :], *order[:at]) if one.track == current.track]
        for exercise in (*track, *order):
            if kept.of(exercise.id).state != "solved" and not self.unmet_needs(exercise):
                return exercise
        return None

    def verdict_of_questions(self, exercise: Exercise) -> Verdict:
        """Return the verdict on an exercise of questions only: it passes when all answers are right."""
        guesses = self.progress().of(exercise.id).quiz
        right = sum(guesses.get(str(number), -1) > 0 for number in range(1, len(exercise.questions) + 1))
        if right == len(exercise.questions):
            return Verdict(exercise.id, True, "goals", "")
        message = (
            f"{right} of {len(exercise.questions)} questions are answered. "
            f"Answer the others with `tilesmith learn quiz {exercise.id}`."
        )
        return Verdict(exercise.id, False, "goals", message)

    def note_check(self, exercise: Exercise, verdict: Verdict, source: bytes) -> None:
        """Record the verdict on this source."""
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
            try:
                _fill_in(self.page_of(exercise), verdict.table)
            except OSError as error:
                _warn_unsaved("the table", error)

    def note_figures(self, exercise: Exercise, figures: dict[str, float]) -> None:
        """Record the metrics of a solution."""

        def change(record: Record) -> None:
            record.figures = figures

        self._update(exercise, change)

    def next_hint(self, exercise: Exercise) -> int:
        """Return how many hints to show: one more than last time, until all are shown."""

        def change(record: Record) -> None:
            record.hints = min(record.hints + 1, len(exercise.hints))

        return self._update(exercise, change).hints

    def may_see_solution(self, exercise: Exercise, give_up: bool) -> bool:
        """Return whether the learner has tried the exercise or gives up. Records that the learner saw the solution."""
        record = self.progress().of(exercise.id)
        allowed = give_up or record.tried or record.gave_up or record.state == "solved"
        if allowed and record.state != "solved":
            self._update(exercise, _give_up)
        return allowed

    def note_guess(self, exercise: Exercise, question: int, guesses: int, right: bool) -> None:
        """Record the answer to one question."""

        def change(record: Record) -> None:
            record.quiz[str(question)] = guesses if right else -1

        self._update(exercise, change)

    def _update(self, exercise: Exercise, change: Callable[[Record], None]) -> Record:
        """Change a record and save it. Warns where it cannot be saved, as in a folder that is read-only."""

        def changed(kept: Progress) -> None:
            kept.current = exercise.id
            change(kept.of(exercise.id))

        try:
            return progress.update(self.folder, changed).of(exercise.id)
        except OSError as error:
            _warn_unsaved("your progress", error)
            unsaved = self.progress()
            changed(unsaved)
            return unsaved.of(exercise.id)


def _warn_unsaved(what: str, error: OSError) -> None:
    message = f"{what} cannot be saved: {error.filename}: {error.strerror or error}"
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _write_page(exercise: Exercise, page: Path) -> None:
    """Write the learner's copy of the page. Its figure is a file beside it."""
    text = exercise.page.read_text(encoding="utf-8")
    figure = figure_of(exercise.id)
    if figure is not None:
        write_atomically(page.with_name(FIGURE), figure.svg())
        heading, _, rest = text.partition("\n")
        text = f"{heading}\n{FIGURE_LINE}{rest}"
    write_atomically(page, text)


def _fill_in(page: Path, table: Table) -> None:
    """Replace the table of the learner's page that has the same first column heading, if there is one."""
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
