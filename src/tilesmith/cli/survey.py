"""`tilesmith bench --draw`: time operators on cases drawn at random."""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilesmith.cli.terminal import CHECK_FAILED, console, refuse, write_result

if TYPE_CHECKING:
    from tilesmith.lab.bench.survey.surveyor import DrawnCase

MOST_JOBS = 16


def survey(
    names: Sequence[str], *, draw: int, seed: int, against: Sequence[str] | None, jobs: int | None, listing: bool,
    limits_anew: bool, json: Path | None, html: Path | None,
) -> None:  # fmt: skip
    """Draw cases, check and time them, and report. Exit status 1 if a result is wrong or the run was interrupted."""
    import torch

    cases = drawn_cases(names, draw, seed, against)
    if listing:
        for case in cases:
            print(json_format.dumps({"operator": case.op, **case.drawn}))
        return
    if not torch.cuda.is_available():
        refuse("a survey times kernels on a GPU, and this machine has none; --list prints the drawn cases")
    _compile(cases, min(jobs or os.cpu_count() or 1, MOST_JOBS))
    found = _measured(cases, draw, seed, limits_anew, json)
    if html is not None:
        from tilesmith.lab.bench.survey.page import write_html

        write_result(html, write_html(found))
    _show(found)
    if found["partial"] or any(case["wrong"] for case in found["cases"]):
        raise typer.Exit(CHECK_FAILED)


def drawn_cases(names: Sequence[str], draw: int, seed: int, against: Sequence[str] | None) -> list[DrawnCase]:
    """Return the cases of all named operators and files; without names, of every operator with a distribution."""
    from tilesmith.cli.check import chosen_specs
    from tilesmith.cli.operator_source import source_of
    from tilesmith.lab.bench.measuring.timed_calls import providers
    from tilesmith.lab.bench.survey import drawing
    from tilesmith.lab.bench.survey.subjects import can_be_drawn
    from tilesmith.lab.bench.survey.surveyor import DrawnCase, chosen_rivals

    chosen = list(names) or list(drawing.DRAW)
    specs = chosen_specs(chosen)
    unknown = [spec.name for spec in specs if not can_be_drawn(spec)]
    if unknown:
        refuse(f"--draw: {', '.join(unknown)} has no distribution of cases; {', '.join(drawing.DRAW)} have one")
    known = list(dict.fromkeys(provider for spec in specs for provider in providers(spec)))
    wrong = [name for name in against or () if name not in (*known, "none", "all")]
    if wrong:
        refuse(f"--against: {', '.join(wrong)} is not one of {', '.join(known[1:])}, all, none")
    return [
        DrawnCase(spec.name, source_of(spec, name), number, drawn, chosen_rivals(spec, against))
        for name, spec in zip(chosen, specs, strict=True)
        for number, drawn in enumerate(drawing.draw(spec.name, seed, draw))
    ]


def _compile(cases: Sequence[DrawnCase], jobs: int) -> None:
    """Compile in parallel. With one job, each case compiles when it is timed."""
    from rich.progress import Progress

    from tilesmith.lab.bench.survey.compiling import compile_ahead

    if jobs < 2:
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"compiling in {jobs} processes", total=len(cases))
        compile_ahead(cases, jobs, report=lambda done: progress.update(task, completed=done))


def _measured(cases: Sequence[DrawnCase], draw: int, seed: int, limits_anew: bool, path: Path | None) -> dict[str, Any]:
    from rich.progress import Progress

    from tilesmith.lab.bench.running.child_process import About, Job, Started, run_job
    from tilesmith.lab.bench.survey.survey_result import Journal, Outcome, content
    from tilesmith.lab.bench.survey.surveyor import start_survey

    job = Job("survey", cases[0].source, tuple(cases), partial(start_survey, limits_anew=limits_anew))
    journal, outcomes, about = Journal(path), list[Outcome](), dict[str, Any]()

    def so_far(partial: bool) -> dict[str, Any]:
        return content(outcomes, seed=seed, drawn=draw, about=about, partial=partial)

    stopped = False
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("starting", total=len(cases))
            for event in run_job(job):
                if isinstance(event, About):
                    about = event.facts
                elif isinstance(event, Started):
                    progress.update(task, description=f"{event.unit.op} {event.unit.number}")
                elif isinstance(event, Outcome):
                    outcomes.append(event)
                    progress.advance(task)
                    journal.write(so_far(True))
    except KeyboardInterrupt:
        stopped = True
    except OSError as error:
        refuse(f"cannot write {path}: {error.strerror or error}")
    found = so_far(stopped)
    if path is not None:
        journal.write(found, last=True)
    return found


def _show(found: dict[str, Any]) -> None:
    from tilesmith.lab.bench.survey.page import blocks
    from tilesmith.lab.report.terminal import show_block

    for block in blocks(found):
        show_block(console, block)
