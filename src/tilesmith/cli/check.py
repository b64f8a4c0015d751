"""`tilesmith check`: compare operators and their gradients with the reference.

The checks run in a child process (`check_child.py`), so that an endless loop or a crash is a verdict too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.cli import check_child
from tilesmith.cli.options import Dtypes, listed, listed_dtypes
from tilesmith.cli.terminal import CHECK_FAILED, console, operators, refuse, write_json

if TYPE_CHECKING:
    from rich.text import Text

    from tilesmith.lab.check import Result
    from tilesmith.spec import Spec

# Of what the code of one operator prints, in characters: a hundred lines.
MOST_PRINTED = 10_000


def check(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP… | FILE.py…]", help="Operators, or files with a SPEC. Default: all."),
    ] = None,
    dtype: Dtypes = None,
    case: Annotated[list[str] | None, typer.Option(help="A case name; may be repeated.")] = None,
    layout: Annotated[list[str] | None, typer.Option(help="Layout names; separated by commas, or repeated.")] = None,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=1.0, help="End one case, dtype and layout after this time.")
    ] = 300.0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as JSON.")] = None,
) -> None:
    """Compare operators and their gradients with the reference, over cases, dtypes and layouts.

    Without a GPU the kernels run in the interpreter. Exit status 1 if a comparison fails.
    """
    from tilesmith.lab.check.check_call import as_json, comparisons

    operators()  # refuses in one line where torch or Triton is missing
    dtypes = [name for name in listed_dtypes(dtype) if name != "all"]  # the default
    wanted = check_child.Wanted(what or [], dtypes, case or [], listed("--layout", layout))
    results = _Run(wanted, time_limit).results()
    if json:
        write_json(json, as_json(results))
    failures = sum(not result.passed for result in results)
    if failures:
        console.print(f"[bold red]{failures} of {comparisons(len(results))} failed[/]")
        raise typer.Exit(CHECK_FAILED)
    console.print(f"{'' if len(results) == 1 else 'all '}{comparisons(len(results))} passed")


def chosen_specs(names: Sequence[str]) -> list[Spec]:
    """Return the specs of the named operators and files; all operators if no name is given."""
    operators()
    from tilesmith.spec import SpecError

    try:
        with console.status("loading"):
            return check_child.loaded(names)
    except SpecError as error:
        refuse(str(error))


class _Run:
    """Follows the child processes of one command, prints what they find, and keeps the results."""

    def __init__(self, wanted: check_child.Wanted, time_limit: float) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("loading", total=None)
        self._wanted = wanted
        self._time_limit = time_limit
        self._results: list[Result] = []
        self._loading = ""
        self._spec: check_child.Started | None = None
        self._trying: check_child.Trying | None = None
        self._of_spec: list[Result] = []
        self._printed = 0

    def results(self) -> list[Result]:
        """Run everything. A child that dies ends the checks of its spec; the next spec gets a new child."""
        from tilesmith.lab.isolated import ChildEnded, Limits, messages

        first = 0
        with self._progress:
            while True:
                try:
                    for message in messages(
                        check_child.run_checks, self._wanted, first, limits=Limits(self._time_limit)
                    ):
                        self._take(message)
                except ChildEnded as end:
                    if self._spec is None:
                        self._progress.stop()
                        refuse(f"{self._loading or 'tilesmith'}: {end} when imported")
                    first = self._spec.number + 1
                    self._died(str(end))
                    continue
                except KeyboardInterrupt:
                    self._print_faults()
                    raise
                return self._results

    def _take(self, message: object) -> None:
        from tilesmith.lab.isolated import Printed

        match message:
            case Printed(text):
                self._forward(text)
            case check_child.Unusable(text):
                self._progress.stop()
                refuse(text)
            case check_child.Loading(name):
                self._loading = name
            case check_child.Started():
                self._spec, self._of_spec = message, []
                self._progress.reset(self._task, total=message.trials)
            case check_child.Trying() if self._spec is not None:
                self._trying = message
                wrong = sum(not one.passed for one in self._of_spec)
                description = f"{self._spec.name} {message.case} {message.dtype} {message.layout}"
                description += f", {wrong} wrong" if wrong else ""
                self._progress.update(self._task, description=description)
            case check_child.Tried(results):
                for result in results:
                    self._note(result)
                if not self._progress.tasks[0].finished:  # other configurations of a tuner come after the trials
                    self._progress.advance(self._task)
            case check_child.Finished(configurations, notes):
                self._summarise(configurations, notes)
            case _:
                self._died("sent what `check` does not send")

    def _forward(self, text: str) -> None:
        """Print what the operator's code prints, up to `MOST_PRINTED` characters."""
        room = MOST_PRINTED - self._printed
        self._printed += len(text)
        if room >= 0:
            sys.stdout.write(text if len(text) <= room else f"{text[:room]}\n")
            sys.stdout.flush()

    def _died(self, reason: str) -> None:
        """Note the end of a child as the verdict on its trial."""
        from tilesmith.lab.check import Result

        assert self._spec is not None
        trying = self._trying or check_child.Trying("", "", "")
        message = f"the operator {reason}; the rest of {self._spec.name} was not checked"
        self._note(
            Result(
                self._spec.name, trying.case, trying.dtype, trying.layout, "process", float("inf"), 0.0, False, message
            )
        )
        self._summarise()

    def _note(self, result: Result) -> None:
        self._of_spec.append(result)
        self._results.append(result)

    def _print_faults(self) -> None:
        from rich.text import Text

        from tilesmith.lab.check.check_call import MOST_FAULTS, faults_in

        faults = faults_in(self._of_spec)
        for fault in faults[:MOST_FAULTS]:
            console.print(Text.assemble(("wrong", "red"), f" {fault.head}: {fault.message}"), soft_wrap=True)
        if len(faults) > MOST_FAULTS:
            console.print(f"… and {len(faults) - MOST_FAULTS} more; --json FILE writes all of them")

    def _summarise(self, configurations: str = "", notes: Sequence[str] = ()) -> None:
        from rich.text import Text

        from tilesmith.lab.check.check_call import from_here

        if self._printed > MOST_PRINTED:
            console.print(f"… and {self._printed - MOST_PRINTED:,} more characters that the operator's code printed")
        self._printed = 0
        self._print_faults()
        for note in notes:
            console.print(Text(from_here(note)), soft_wrap=True)
        if self._spec is not None:
            console.print(_summary(self._spec, self._of_spec, configurations), soft_wrap=True)


def _summary(spec: check_child.Started, results: Sequence[Result], configurations: str) -> Text:
    from rich.text import Text

    from tilesmith.lab.check.check_call import comparisons

    wrong = sum(not result.passed for result in results)
    verdict = (f"{wrong} wrong", "red") if wrong else ("right", "")
    used = max((result.error / result.allowed for result in results if result.allowed), default=0.0)
    exact = "" if wrong else f"; largest error {used:.0%} of the allowed error"
    beyond = f"; only on a GPU: {', '.join(spec.left_out)}" if spec.left_out else ""
    tuned = f"; {configurations}" if configurations else ""
    return Text.assemble(f"{spec.name}: ", verdict, f", {comparisons(len(results))}{exact}{tuned}{beyond}")
