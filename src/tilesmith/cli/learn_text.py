"""The texts that `tilesmith learn` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from tilesmith.cli.terminal import console

if TYPE_CHECKING:
    from tilesmith.workshop.checking.verdict import QuestionAnswers
    from tilesmith.workshop.course.exercise import Exercise, Question
    from tilesmith.workshop.isolation.worker import Outcome
    from tilesmith.workshop.learner.progress import Progress
    from tilesmith.workshop.learner.workshop_folder import Workshop
    from tilesmith.workshop.mutants.survivors import MutationResult
    from tilesmith.workshop.publishing.verify import Verified

DOING = {
    "parses": "reading your file",
    "compiles": "compiling for NVIDIA and AMD",
    "runs": "running in the interpreter",
    "right": "comparing with PyTorch",
    "goals": "measuring",
    "nvcc": "compiling with nvcc",
    "speed": "timing",
}
_MARKS = {"solved": ("✓", "green"), "attempted": ("~", "yellow"), "open": ("·", "dim")}
_MOST_PRINTED_LINES = 12


def course(workshop: Workshop, kept: Progress) -> RenderableType:
    """Return the list of exercises, track by track."""
    parts: list[RenderableType] = []
    for track, exercises in workshop.catalogue.tracks().items():
        grid = Table(box=None, show_header=False, pad_edge=False, title=track, title_justify="left", title_style="bold")
        for column in ("mark", "id", "title", "needs"):
            grid.add_column(column, no_wrap=column in ("mark", "id"), style="dim" if column == "needs" else "")
        for one in exercises:
            mark, style = _MARKS[kept.of(one.id).state]
            needs = f"after {', '.join(one.needs)}" if one.needs else ""
            grid.add_row(Text(f"  {mark}", style=style), Text(one.id), Text(one.title), Text(needs))
        parts += [grid, Text()]
    return Group(*parts, progress_line(workshop))


def progress_line(workshop: Workshop) -> Text:
    """Return `solved 2 of 5` and the next command."""
    following = workshop.next_open()
    text = Text().append(_solved(workshop))
    return text.append(
        f"; next: tilesmith learn start {following.id}" if following else "; no exercise is left", style="dim"
    )


def _solved(workshop: Workshop) -> Text:
    kept = workshop.progress()
    solved = sum(kept.of(name).state == "solved" for name in workshop.catalogue)
    return Text(f"solved {solved} of {len(workshop.catalogue)}", style="bold")


def started(workshop: Workshop, exercise: Exercise, fresh: bool) -> RenderableType:
    file = workshop.file_of(exercise)
    grid = Table("what", Column("where", overflow="fold"), box=None, show_header=False, pad_edge=False)
    if exercise.effort:
        grid.add_row("  needs", Text(exercise.effort))
    grid.add_row("  read", Text(str(workshop.page_of(exercise))))
    if exercise.is_only_questions:
        grid.add_row("  answer", Text(f"tilesmith learn quiz {exercise.id}"))
    else:
        grid.add_row("  write", Text(str(file) + ("" if fresh else "  (your work, unchanged)")))
        grid.add_row("  check", Text(f"tilesmith learn check {exercise.id}; or learn watch checks whenever you save"))
    return Group(Text(f"{exercise.id}: {exercise.title}", style="bold"), grid)


def outcome(workshop: Workshop, exercise: Exercise, found: Outcome) -> RenderableType:
    """Return a verdict as text: the stages, the reason for a failure, and the next step."""
    verdict = found.verdict
    parts: list[RenderableType] = []
    if found.printed.strip():
        lines = found.printed.strip().splitlines()
        more = f"\n… and {len(lines) - _MOST_PRINTED_LINES} more lines" if len(lines) > _MOST_PRINTED_LINES else ""
        parts.append(Text("your file printed:\n" + "\n".join(lines[:_MOST_PRINTED_LINES]) + more, style="dim"))
    stages = Text(f"{exercise.id}: ", style="bold")
    for stage in exercise.stages_until(verdict.stage):
        failed = stage == verdict.stage and not verdict.passed
        stages.append(f"{'✗' if failed else '✓'} {stage}  ", style="bold red" if failed else "green")
    parts.append(stages)
    parts += [
        Text(f"  {'✓' if goal.met else '✗'} {goal.name}: {goal.value:.4g} (wanted {goal.wanted})")
        for goal in verdict.goals
    ]
    parts += [Text(f"  {line}") for line in verdict.speed]
    if verdict.table:
        parts += [Text(), _grid(verdict.table), Text(f"(also in {workshop.page_of(exercise)})", style="dim")]
    if verdict.passed:
        further = f"solved. Next, the questions: tilesmith learn quiz {exercise.id}" if exercise.questions else "solved"
        parts += [Text(further), progress_line(workshop)]
    else:
        parts.append(Text(f"\n{verdict.message}\n"))
        parts.append(Text("stuck? tilesmith learn hint", style="dim"))
    return Group(*parts)


def _grid(rows: Sequence[Sequence[str]]) -> Table:
    grid = Table(box=None, pad_edge=False)
    for head in rows[0]:
        grid.add_column(Text(head), justify="right")
    for row in rows[1:]:
        grid.add_row(*map(Text, row))
    return grid


def hints(exercise: Exercise, shown: int) -> Text:
    text = Text()
    for number, hint in enumerate(exercise.hints[:shown], 1):
        text.append(f"{number}. {hint}\n", style="" if number == shown else "dim")
    if shown == len(exercise.hints):
        text.append("That was the last hint. The solution: tilesmith learn solution", style="dim")
    return text


def ask(question: Question, answers: QuestionAnswers, given: list[float] | None, guesses: int) -> tuple[int, bool]:
    """Ask until a guess is right or no guess is left. Return the number of guesses and whether the last was right."""
    from tilesmith.workshop.quizzes.replies import answer_text, reply_to

    if given is not None:
        if not given:
            return 0, False
        reply = reply_to(question, answers, given[0])
        console.print(reply.text, markup=False, soft_wrap=not console.is_terminal)
        return 1, reply.right
    for number in range(1, guesses + 1):
        reply = reply_to(question, answers, _guess())
        console.print(reply.text, markup=False, soft_wrap=not console.is_terminal)
        if reply.right:
            return number, True
    console.print(answer_text(question, answers), markup=False, soft_wrap=not console.is_terminal)
    return guesses, False


def _guess() -> float:
    """Ask until the learner types a number."""
    from tilesmith.workshop.quizzes.written_numbers import written_number

    while True:
        try:
            return written_number(typer.prompt("your guess", type=str))
        except ValueError as error:
            console.print(str(error), markup=False, soft_wrap=not console.is_terminal)


def listing(file: Path) -> RenderableType:
    from rich.syntax import Syntax

    code = file.read_text(encoding="utf-8")
    return Syntax(code, "python", background_color="default") if console.is_terminal else Text(code)


def keys(workshop: Workshop, exercise: Exercise) -> Text:
    line = Text(f"[{exercise.id}] save to check · n next · h hint · l list · q quit   ", style="dim")
    return line.append(_solved(workshop))


def verified(one: Verified) -> Text:
    text = Text(f"{one.exercise.id}: ")
    if not one.problems:
        return text.append(f"{one.programs} programs as expected", style="green")
    for problem in one.problems:
        text.append(f"\n  {problem}", style="red")
    return text


def mutated(one: MutationResult) -> Text:
    """Return the counts of an exercise's mutants, and every survivor with the reason."""
    text = Text(
        f"{one.exercise.id}: {len(one.fates)} mutants, {one.counted('failed')} failed, "
        f"{one.counted('equivalent')} equivalent"
    )
    for survivor in one.survivors:
        file = f"{one.exercise.solution.name}:{survivor.line}"
        text.append(f"\n  survived: {file} {survivor.name}\n    {survivor.why}", style="red")
    for name in one.unknown:
        text.append(f"\n  mutants.toml lists a mutant that does not exist: {name}", style="red")
    return text
