"""`tilesmith train`: train a version of a model; under torchrun, on several processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tilesmith.cli.options import (
    Choices,
    Data,
    LlamaSizes,
    OpenFoldSizes,
    Reports,
    Schedule,
    TextData,
    as_flags,
    given,
    with_options,
)
from tilesmith.cli.terminal import CHECK_FAILED, WRONG_USAGE, console, write_json, write_result

if TYPE_CHECKING:
    from tilesmith.training.data.tasks import Task
    from tilesmith.training.running.checkpoint import Checkpoint
    from tilesmith.training.running.run import Record, Run, Settings

train = typer.Typer(
    name="train",
    help="Train a version of a model; under torchrun, on several processes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class Files:
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a checkpoint at the end.")] = None
    save_every: Annotated[int | None, typer.Option(min=1, metavar="N", help="Also write after every N steps.")] = None
    resume: Annotated[Path | None, typer.Option(metavar="FILE", help="Resume from a checkpoint.")] = None
    profile: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a trace for Perfetto.")] = None


@train.command("llama")
@with_options
def train_llama(
    sizes: LlamaSizes, choices: Choices, schedule: Schedule, data: TextData, files: Files, reports: Reports
) -> None:
    """Train Tiny LLaMA on tokens of known entropy or on a file.

    Under torchrun the processes divide the batch: torchrun --nproc-per-node 2 -m tilesmith train llama …

    Exit status 1 if a gradient is missing or not finite, or if the run was interrupted.
    """
    _train("llama", {**given(sizes), **given(data)}, {**given(choices), **given(schedule)}, files, reports)


@train.command("openfold")
@with_options
def train_openfold(
    sizes: OpenFoldSizes, choices: Choices, schedule: Schedule, data: Data, files: Files, reports: Reports
) -> None:
    """Train Tiny OpenFold on chains whose alignment determines their distances.

    torchrun and the exit status work as for `tilesmith train llama`.
    """
    _train("openfold", {**given(sizes), **given(data)}, {**given(choices), **given(schedule)}, files, reports)


def _train(model: str, fixed: dict[str, Any], changing: dict[str, Any], files: Files, reports: Reports) -> None:
    """Train a model. A resumed run must keep the `fixed` options and may have other `changing` ones."""
    with one_line_errors():
        from tilesmith.training.running.distributed import joined
        from tilesmith.training.running.run import Run

        task, settings, resumed = _requested(model, fixed, changing, files.resume)
        with joined() as place:
            run = Run(task, settings, place, resumed)
            problem = _run(run, files, reports)
        if problem:
            end(problem, WRONG_USAGE)
        if run.record.interrupted:
            end(f"interrupted after {run.steps_done} of {settings.num_steps} steps", CHECK_FAILED)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """On an error of training, exit with one line that names the command line's options."""
    import torch

    from tilesmith.training.data.tokens import DataError
    from tilesmith.training.running.checkpoint import CheckpointError
    from tilesmith.training.running.gradient_guard import GradientError
    from tilesmith.training.running.run import SettingsError

    try:
        yield
    except SettingsError as error:
        end(as_flags(str(error)), WRONG_USAGE)
    except DataError as error:
        end(f"--data: {error}", WRONG_USAGE)
    except CheckpointError as error:
        end(f"--resume: {error}", WRONG_USAGE)
    except GradientError as error:
        end(str(error), CHECK_FAILED)
    except torch.OutOfMemoryError as error:
        end(f"out of GPU memory; try a smaller --batch-size: {str(error).splitlines()[0]}", WRONG_USAGE)


def end(message: str, status: int) -> NoReturn:
    """Exit with one line on standard error; only the first of several processes prints it."""
    if os.environ.get("RANK", "0") == "0":
        print(f"tilesmith: {message}", file=sys.stderr)
    raise typer.Exit(status)


def _requested(
    model: str, fixed: dict[str, Any], changing: dict[str, Any], resume: Path | None
) -> tuple[Task, Settings, Checkpoint | None]:
    from tilesmith.training.running import checkpoint, options

    if resume is None:
        task = options.task_of(model, fixed)
        return task, options.settings_of({**task.defaults, **changing}, task.versions), None
    resumed = checkpoint.read(resume)
    task = options.resumed_task(model, resumed, fixed)
    return task, options.resumed_settings(resumed, changing, task.versions), resumed


def _run(run: Run, files: Files, reports: Reports) -> str | None:
    """Train, save and report; return the error of saving, so that the report comes first."""
    from tilesmith.training.running.phase_times import phase_milliseconds

    try:
        problem = _trained(run, files)
        result = run.result(phase_milliseconds(run))
        if files.profile:
            _profile(run, files.profile)
    finally:
        run.close()
    if run.place.is_first:
        _report(result, reports)
    return problem


def _trained(run: Run, files: Files) -> str | None:
    """Run all steps and write the checkpoints; return the error of saving, or None."""
    from tilesmith.training.running import checkpoint

    if files.save:
        try:
            checkpoint.require_room(files.save, run.model)
        except OSError as error:
            end(f"--save: cannot write {files.save}: {error.strerror or error}", WRONG_USAGE)
    problem, last = None, run.settings.num_steps
    with progress_of(run) as report:
        while run.steps_done < last and not run.record.interrupted and not problem:
            until = min(last, run.steps_done + (files.save_every or last))
            run.train(report, until)
            if files.save:
                problem = _save(run, files.save)
    return problem


def _save(run: Run, path: Path) -> str | None:
    from tilesmith.training.running import checkpoint

    taken = run.checkpoint()
    if not run.place.is_first:
        return None
    try:
        checkpoint.write(path, taken)
    except OSError as error:
        return f"--save: cannot write {path}: {error.strerror or error}"
    return None


@contextmanager
def progress_of(run: Run, label: str = "training") -> Iterator[Any]:
    """Show a progress bar with loss, speed and memory; yield the function that updates it from the record."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tilesmith.lab.report.number_format import figure, memory

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[found]}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not run.place.is_first)
    with bar:
        task = bar.add_task(f"{label} {run.settings.variant}", total=run.settings.num_steps, found="")

        def report(record: Record) -> None:
            found = [f"loss {record.losses[-1]:.3f}"]
            if record.step_ms:
                samples = 1000 * run.settings.batch_size / record.step_ms
                found += [figure(samples, "samples/s"), figure(samples * run.task.tokens_per_sample, "tokens/s")]
            if record.peak_bytes:
                found.append(memory(record.peak_bytes))
            bar.update(task, completed=len(record.losses), found=", ".join(found))

        yield report


def _profile(run: Run, folder: Path) -> None:
    from tilesmith.lab.profile.summary import blocks
    from tilesmith.lab.report.terminal import show_block
    from tilesmith.training.running.profiling import profiled

    try:
        summary = profiled(run, folder / f"rank{run.place.rank}" if run.place.processes > 1 else folder)
    except OSError as error:
        end(f"--profile: cannot write {folder}: {error.strerror or error}", WRONG_USAGE)
    if run.place.is_first:
        for block in blocks(summary):
            show_block(console, block)
        for path, how in summary.files:
            console.print(f"{path}\n  {how}", soft_wrap=True, markup=False)


def _report(result: dict[str, Any], reports: Reports) -> None:
    from tilesmith.lab.report.terminal import show_block
    from tilesmith.training.results.provenance import stamped
    from tilesmith.training.results.report import run_page, summary

    for block in summary(result):
        show_block(console, block)
    result = stamped(result)
    if reports.json:
        write_json(reports.json, result)
    if reports.html:
        write_result(reports.html, run_page(result))
