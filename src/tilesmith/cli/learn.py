"""`tilesmith learn`: the workshop."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.cli import learn_text
from tilesmith.cli.terminal import CHECK_FAILED, WRONG_USAGE, console, refuse, write_json, write_result
from tilesmith.storage import is_stream

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilesmith.workshop.checking.verdict import Verdict
    from tilesmith.workshop.course.exercise import Exercise
    from tilesmith.workshop.isolation.worker import Worker
    from tilesmith.workshop.learner.workshop_folder import Workshop

learn = typer.Typer(name="learn", rich_markup_mode=None)

Folder = Annotated[
    Path, typer.Option(metavar="DIR", envvar="TILESMITH_WORKSHOP", help="The folder for your files and your progress.")
]
Sets = Annotated[
    list[Path] | None, typer.Option("--exercises", metavar="DIR", help="A folder of private exercises; repeatable.")
]
Name = Annotated[str | None, typer.Argument(metavar="[ID]", help="Default: the exercise that you worked on last.")]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON.")]
HERE = Path("tilesmith-workshop")
REPORT = Path("workshop-report")
GUESSES = 3


def _show(what: RenderableType, style: str = "") -> None:
    """Print a text: wrapped in a terminal, unchanged in a pipe, never read as markup."""
    console.print(what, style=style, markup=False, soft_wrap=not console.is_terminal)


@contextmanager
def opened(folder: Path, sets: list[Path] | None) -> Iterator[Workshop]:
    """Open the learner's workshop. Print errors and warnings as one line each."""
    from tilesmith.workshop.course.catalogue import Catalogue
    from tilesmith.workshop.course.exercise import ExerciseError
    from tilesmith.workshop.learner.workshop_folder import Workshop, nearest_workshop

    folder = nearest_workshop(HERE) if folder == HERE else folder
    if folder.exists() and not folder.is_dir():
        refuse(f"--folder: {folder} is not a folder")
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *rest, **options: _show(f"note: {message}")
        try:
            yield Workshop(folder, Catalogue(sets or ()))
        except ExerciseError as error:
            refuse(str(error))
        except OSError as error:
            if error.filename is None:  # standard output
                raise
            refuse(f"{error.filename}: {error.strerror or error}")


@learn.callback(invoke_without_command=True)
def workshop(
    context: typer.Context,
    html: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the course as a static site, with pictures.")
    ] = None,
    exercises: Sets = None,
) -> None:
    """The workshop: exercises in Triton, checked on any machine. Begin with `tilesmith learn list`."""
    if context.invoked_subcommand is not None:
        early = [name for name, value in (("--html", html), ("--exercises", exercises)) if value]
        if early:
            refuse(f"{early[0]} must come after the command: tilesmith learn {context.invoked_subcommand} {early[0]} …")
        return
    if html is not None and html.exists() and not html.is_dir():
        refuse(f"--html: {html} is not a folder")
    if html is None:
        console.print(context.get_help(), markup=False, soft_wrap=True)
        raise typer.Exit(WRONG_USAGE)
    from tilesmith.workshop.publishing.site import write_site

    with opened(HERE, exercises) as all_of_it, console.status("running the model solutions") as status:

        def finished(name: str, done: int, all_there_are: int) -> None:
            line = f"{done} of {all_there_are} model solutions have run: {name}"
            status.update(line) if console.is_terminal else _show(line)

        number = write_site(all_of_it.catalogue, html, finished, jobs=os.cpu_count() or 1)
    _show(f"wrote {number} exercises to {html / 'index.html'}")


@learn.command("list")
def list_exercises(folder: Folder = HERE, exercises: Sets = None, json: Json = None) -> None:
    """Show all exercises, what each needs, and your progress."""
    with opened(folder, exercises) as workshop:
        kept = workshop.progress()
        _show(learn_text.course(workshop, kept))
        if json:
            rows = [
                {
                    "id": one.id,
                    "title": one.title,
                    "track": one.track,
                    "needs": list(one.needs),
                    "state": kept.of(one.id).state,
                }
                for one in workshop.catalogue.values()
            ]
            write_json(json, rows)


@learn.command()
def start(
    exercise: Annotated[str, typer.Argument(metavar="ID")],
    folder: Folder = HERE,
    exercises: Sets = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Start also where the starter shows the answer of an unsolved exercise.")
    ] = False,
) -> None:
    """Copy an exercise into your folder. Your own files stay unchanged."""
    with opened(folder, exercises) as workshop:
        chosen = workshop.catalogue[exercise]
        answered = workshop.answered_by_starter(chosen)
        if answered is not None and not anyway:
            refuse(
                f"{chosen.id} begins with the answer to {answered.id}, which you have not solved; "
                f"solve {answered.id} first, or use --anyway"
            )
        unmet = workshop.unmet_needs(chosen)
        fresh = workshop.start(chosen)
        _show(learn_text.started(workshop, chosen, fresh))
        if unmet:
            names = ", ".join(one.id for one in unmet)
            _show(f"note: {chosen.id} builds on {names}, which you have not solved yet")


@learn.command()
def check(exercise: Name = None, folder: Folder = HERE, exercises: Sets = None, json: Json = None) -> None:
    """Check your file stage by stage and explain the first failure. Exit status 1 if a stage fails."""
    from tilesmith.workshop.isolation.worker import Worker

    with opened(folder, exercises) as workshop, Worker() as worker:
        chosen, file = workshop.started(exercise)
        verdict = _checked(workshop, worker, chosen, file)
        if json:
            write_json(json, verdict.as_json())
        if not verdict.passed:
            raise typer.Exit(CHECK_FAILED)


@learn.command()
def show(
    exercise: Name = None,
    folder: Folder = HERE,
    exercises: Sets = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the page. Default: picture.html beside your file."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in your browser.")] = True,
) -> None:
    """Draw your own kernel on the exercise's inputs, with the failing access marked and the goals beside the counts."""
    from tilesmith.workshop.isolation.worker import Worker

    with opened(folder, exercises) as workshop, Worker() as worker:
        chosen, file = workshop.started(exercise)
        if not (chosen.has_kernels or chosen.is_cuda):
            kind = "a program" if chosen.is_program else "questions only"
            refuse(f"{chosen.id} has {kind}, and a picture shows kernels")
        page = html or file.with_name("picture.html")
        page.unlink(missing_ok=True)
        with console.status("running your file"):
            outcome = worker.check(chosen, file, picture=page)
        _show(learn_text.outcome(workshop, chosen, outcome))
    if not page.is_file():
        refuse(f"there is no picture, because no kernel of {file.name} ran")
    _show(f"wrote {page}")
    if browser and console.is_terminal:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _checked(workshop: Workshop, worker: Worker, exercise: Exercise, file: Path) -> Verdict:
    """Check a file, record the verdict and print it."""
    from tilesmith.workshop.isolation.worker import Outcome

    source = b"" if exercise.is_only_questions else file.read_bytes()
    with console.status("starting") as status:
        if exercise.is_only_questions:
            outcome = Outcome(workshop.verdict_of_questions(exercise))
        else:
            outcome = worker.check(exercise, file, entering=lambda stage: status.update(learn_text.DOING[stage]))
    workshop.note_check(exercise, outcome.verdict, source)
    _show(learn_text.outcome(workshop, exercise, outcome))
    return outcome.verdict


@learn.command()
def hint(exercise: Name = None, folder: Folder = HERE, exercises: Sets = None) -> None:
    """Show one more hint."""
    with opened(folder, exercises) as workshop:
        _hint(workshop, workshop.chosen(exercise))


def _hint(workshop: Workshop, exercise: Exercise) -> None:
    shown = workshop.next_hint(exercise)
    _show(learn_text.hints(exercise, shown))


@learn.command()
def quiz(
    exercise: Name = None,
    folder: Folder = HERE,
    exercises: Sets = None,
    answer: Annotated[
        list[str] | None, typer.Option(help="Your guess, once per question, instead of a prompt.")
    ] = None,
) -> None:
    """Predict numbers about your kernel. Exit status 1 if a guess given with --answer is wrong."""
    from tilesmith.workshop.isolation.worker import Worker
    from tilesmith.workshop.quizzes.written_numbers import written_number

    try:
        guesses_given = [written_number(text) for text in answer or ()]
    except ValueError as error:
        refuse(f"--answer {error}".removesuffix("."))
    with opened(folder, exercises) as workshop, Worker() as worker:
        chosen = workshop.chosen(exercise)
        own = workshop.state(chosen) == "solved" and workshop.file_of(chosen).is_file()
        with console.status("counting"):
            file = workshop.file_of(chosen) if own else chosen.solution
            found = worker.quiz(chosen, None if chosen.is_only_questions else file)
        if not chosen.is_only_questions:
            _show(f"The numbers are counted in {'your kernel' if own else 'the model solution'}.", style="dim")
        wrong = 0
        for number, (question, answers) in enumerate(zip(chosen.questions, found, strict=True), 1):
            _show(f"\n{number}. {question.question}")
            given = guesses_given[number - 1 : number] if answer else None
            guesses, right = learn_text.ask(question, answers, given, GUESSES)
            workshop.note_guess(chosen, number, guesses, right)
            wrong += not right
        if chosen.is_only_questions and not wrong:
            workshop.note_check(chosen, workshop.verdict_of_questions(chosen), b"")
            _show(learn_text.progress_line(workshop))
    if answer and wrong:
        raise typer.Exit(CHECK_FAILED)


@learn.command()
def solution(
    exercise: Name = None,
    folder: Folder = HERE,
    exercises: Sets = None,
    give_up: Annotated[bool, typer.Option("--give-up", help="Show the solution without your own attempt.")] = False,
) -> None:
    """Show the model solution, after your own attempt."""
    with opened(folder, exercises) as workshop:
        chosen = workshop.chosen(exercise)
        if chosen.is_only_questions:
            refuse(
                f"{chosen.id} has questions only: `tilesmith learn quiz {chosen.id}` shows each answer "
                f"after {GUESSES} guesses"
            )
        if not workshop.may_see_solution(chosen, give_up):
            refuse(
                f"try {chosen.id} first: edit {workshop.file_of(chosen)} and check it, "
                "take a hint with `tilesmith learn hint`, or use --give-up"
            )
        _show(learn_text.listing(chosen.solution))


@learn.command()
def reset(exercise: Name = None, folder: Folder = HERE, exercises: Sets = None) -> None:
    """Restore the starter. Your work is kept in a file beside it."""
    with opened(folder, exercises) as workshop:
        chosen = workshop.chosen(exercise)
        kept = workshop.reset(chosen)
        _show(f"{chosen.id} is the starter again")
        if kept:
            _show(f"your work is in {kept}")


@learn.command()
def watch(exercise: Name = None, folder: Folder = HERE, exercises: Sets = None) -> None:
    """Check whenever you save. Keys: n next exercise, h hint, l list, q quit."""
    from tilesmith.workshop.isolation.worker import Worker
    from tilesmith.workshop.learner.save_or_key import file_stamp, keys_without_return, wait_for_key_or_save

    with opened(folder, exercises) as workshop, Worker() as worker, keys_without_return():
        chosen = _begun(
            workshop, workshop.chosen(exercise or workshop.progress().current or next(iter(workshop.catalogue)))
        )
        key = ""
        while key != "q":
            if key == "":
                file = workshop.file_of(chosen)
                seen = file_stamp(file)
                _checked(workshop, worker, chosen, file)
                worker.close()  # the checked file may have changed the process
                worker.start()
            elif key == "h":
                _hint(workshop, chosen)
            elif key == "l":
                _show(learn_text.course(workshop, workshop.progress()))
            _show(learn_text.keys(workshop, chosen))
            key = wait_for_key_or_save(file, seen)
            if key == "n":
                chosen, key = _begun(workshop, workshop.next_open() or chosen), ""


def _begun(workshop: Workshop, exercise: Exercise) -> Exercise:
    fresh = workshop.start(exercise)
    _show(learn_text.started(workshop, exercise, fresh))
    return exercise


@learn.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The command writes FILE.json and FILE.md.")] = REPORT,
    learner: Annotated[str, typer.Option(help="Your name for the report.")] = "",
    folder: Folder = HERE,
    exercises: Sets = None,
) -> None:
    """Write a report for the instructor: solved exercises, number of checks and hints, and your files."""
    from tilesmith.workshop.learner.instructor_report import report_data, report_markdown

    with opened(folder, exercises) as workshop:
        report = report_data(workshop, learner)
    write_result(file.with_suffix(".md"), report_markdown(report), replaces=rb"# .*: \d+ of \d+ solved")
    write_json(file.with_suffix(".json"), report)
    _show(f"wrote {file.with_suffix('.json')} and {file.with_suffix('.md')}")


@learn.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Default: all.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Parallel processes. Default: the number of cores.")] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Make one mistake after another in each solution; list those that pass.")
    ] = False,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="With --mutants: try only every N-th mutant.")] = 1,
    exercises: Sets = None,
    json: Json = None,
) -> None:
    """For authors: verify that starters and wrong variants fail, solutions pass, and answers are sound."""
    from tilesmith.workshop.publishing.verify import verify as verified

    if every != 1 and not mutants:
        refuse("--every needs --mutants")
    problems = programs = 0
    rows = []
    with opened(HERE, exercises) as workshop:
        chosen = [workshop.catalogue[name] for name in names or workshop.catalogue]
        if mutants:
            _verify_mutants(chosen, jobs or os.cpu_count() or 1, every, json)
            return
        for one in verified(chosen, jobs or os.cpu_count() or 1):
            programs += one.programs
            problems += len(one.problems)
            rows.append({"id": one.exercise.id, "programs": one.programs, "problems": list(one.problems)})
            _show(learn_text.verified(one))
            if json and not is_stream(json):  # after each exercise: a long run may be interrupted
                write_json(json, rows)
    _show(f"exercises: {len(chosen)}, programs: {programs}, problems: {problems}")
    if json:
        write_json(json, rows)
    if problems:
        raise typer.Exit(CHECK_FAILED)


def _verify_mutants(chosen: list[Exercise], jobs: int, every: int, json: Path | None) -> None:
    """Try the mutants of exercises. Exit status 1 if one survives, or a listed equivalent does not exist."""
    from tilesmith.workshop.mutants.survivors import try_mutants

    results = []
    for one in try_mutants([each for each in chosen if not each.is_only_questions], jobs, every):
        results.append(one)
        _show(learn_text.mutated(one))
        if json and not is_stream(json):  # after each exercise: a run of hours may be interrupted
            write_json(json, [each.as_json() for each in results])
    failed, equivalent, survived = (
        sum(one.counted(fate) for one in results) for fate in ("failed", "equivalent", "survived")
    )
    _show(
        f"exercises: {len(results)}, mutants: {sum(len(one.fates) for one in results)}, failed their check: {failed}, "
        f"equivalent: {equivalent}, survived: {survived}"
    )
    if json:
        write_json(json, [one.as_json() for one in results])
    if survived or any(one.unknown for one in results):
        raise typer.Exit(CHECK_FAILED)
