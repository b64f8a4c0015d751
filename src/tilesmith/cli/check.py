"""`tilesmith check`: compare operators and their gradients with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilesmith.cli.terminal import CHECK_FAILED, console, operators, refuse, write_json

if TYPE_CHECKING:
    from rich.text import Text

    from tilesmith.lab.check import Result, Trial
    from tilesmith.spec import Spec

# A wrong kernel mostly fails everywhere; more lines would push the first ones off the screen.
MOST_LINES = 10


def check(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP… | FILE.py…]", help="Operators, or files with a SPEC. Default: all."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="float32, float16, bfloat16; may be repeated.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="A case name; may be repeated.")] = None,
    layout: Annotated[list[str] | None, typer.Option(help="A layout name; may be repeated.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as JSON.")] = None,
) -> None:
    """Compare operators and their gradients with the reference, over cases, dtypes and layouts.

    Without a GPU the kernels run in the interpreter. Exit status 1 if a comparison fails.
    """
    from tilesmith.lab.check_call import as_json

    specs = chosen_specs(what or [])
    results = [result for spec in specs for result in _check_one(spec, dtype or [], case or [], layout or [])]
    if json:
        write_json(json, as_json(results))
    failures = sum(not result.passed for result in results)
    if failures:
        console.print(f"[bold red]{failures} of {len(results)} comparisons failed[/]")
        raise typer.Exit(CHECK_FAILED)
    console.print(f"all {len(results)} comparisons passed")


def chosen_specs(names: Sequence[str]) -> list[Spec]:
    """Return the specs of the named operators and files; all operators if no name is given."""
    known = operators()
    from tilesmith.spec import SpecError

    try:
        with console.status("loading"):
            return [_spec(name, known) for name in names or known]
    except SpecError as error:
        refuse(str(error))


def _spec(name: str, known: Mapping[str, Spec]) -> Spec:
    from tilesmith.spec import SpecError, load_file

    if name in known:
        return known[name]
    if name.endswith(".py"):
        return load_file(Path(name))
    raise SpecError(f"{name!r} is neither an operator ({', '.join(known)}) nor a Python file")


def _check_one(spec: Spec, dtypes: Sequence[str], cases: Sequence[str], layouts: Sequence[str]) -> list[Result]:
    from tilesmith.ops import use
    from tilesmith.spec import SpecError

    try:
        with console.status(f"preparing {spec.name}"):
            chosen = _trials(spec, dtypes, cases, layouts)
        with use("triton"):  # our kernels, even where PyTorch was measured faster
            results = _run_all(spec, chosen)
    except SpecError as error:
        refuse(str(error))
    tried = {trial.case.name for trial in chosen}
    left_out = [case.name for case in spec.cases if not cases and case.name not in tried]
    console.print(_summary(spec, results, left_out), soft_wrap=True)
    return results


def _trials(spec: Spec, dtypes: Sequence[str], cases: Sequence[str], layouts: Sequence[str]) -> list[Trial]:
    from tilesmith.lab.check import trials
    from tilesmith.spec import SpecError

    known_dtypes = {str(one).removeprefix("torch."): one for one in spec.dtypes}
    chosen = trials(
        spec,
        cases=[spec.case(name) for name in cases] or None,
        dtypes=[_named("dtype", name, known_dtypes) for name in dtypes],
        layouts=[_named("layout", name, {one.name: one for one in spec.layouts}) for name in layouts],
    )
    if not chosen:
        names = ", ".join(case.name for case in spec.cases)
        raise SpecError(
            f"{spec.name}: without a GPU every case is too large ({names}); add a small case, or name one with --case"
        )
    return chosen


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    from tilesmith.spec import SpecError

    if name not in known:
        raise SpecError(f"{kind} {name!r} is not one of {', '.join(known)}")
    return known[name]


def _run_all(spec: Spec, chosen: Sequence[Trial]) -> list[Result]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tilesmith.lab.check import run

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results: list[Result] = []
    failures = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(spec.name, total=len(chosen))
        for trial in chosen:
            dtype = str(trial.dtype).removeprefix("torch.")
            progress.update(task, description=f"{spec.name} {trial.case.name} {dtype} {trial.layout.name}")
            for result in run(trial):
                results.append(result)
                failures += not result.passed
                if not result.passed and failures <= MOST_LINES:
                    console.print(_line(result), soft_wrap=True)
            progress.advance(task)
    if failures > MOST_LINES:
        console.print(f"… and {failures - MOST_LINES} more; --json FILE writes all of them")
    return results


def _line(result: Result) -> Text:
    from rich.text import Text

    where = f"{result.op} {result.case} {result.dtype} {result.layout}, {result.what}"
    figures = f" (error {result.error:.2g}, allowed {result.allowed:.2g})" if isfinite(result.error) else ""
    return Text.assemble(("wrong", "red"), f" {where}{figures}: {result.message}")


def _summary(spec: Spec, results: Sequence[Result], left_out: Sequence[str]) -> Text:
    from rich.text import Text

    wrong = sum(not result.passed for result in results)
    verdict = (f"{wrong} wrong", "red") if wrong else ("right", "")
    used = max((result.error / result.allowed for result in results if result.allowed), default=0.0)
    exact = "" if wrong else f"; largest error {used:.0%} of the allowed error"
    beyond = f"; only on a GPU: {', '.join(left_out)}" if left_out else ""
    return Text.assemble(f"{spec.name}: ", verdict, f", {len(results)} comparisons{exact}{beyond}")
