"""`tilesmith train`: train a version of a model; under torchrun, on several processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
    from tilesmith.lab.profile.summary import Summary
    from tilesmith.training.data.tasks import Task
    from tilesmith.training.running.checkpoint import Checkpoint
    from tilesmith.training.running.distributed import Place
    from tilesmith.training.running.run import Record, Run, Settings

OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "overflow", "bad_alloc")
"""What the error of PyTorch's CPU allocator says."""
TOO_LARGE = ("Maximum allowed", "array is too big")
"""What numpy says of arrays that no memory holds."""
CONNECTION_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL error", "Timed out")
"""What the errors of gloo and NCCL say."""

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
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Resume from a checkpoint; if it is --save's and missing, start."),
    ] = None
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
    if files.save_every and not files.save:
        end("--save-every needs --save, the file to write", WRONG_USAGE)
    if files.profile and files.profile.exists() and not files.profile.is_dir():
        end(f"--profile: {files.profile} is not a folder", WRONG_USAGE)
    with one_line_errors():
        from tilesmith.training.running.distributed import joined

        starts = files.resume is None or (files.resume == files.save and not files.resume.exists())
        task, settings, resumed = _requested(model, fixed, changing, None if starts else files.resume)
        with joined() as place:
            outcome = _outcome(task, settings, place, resumed, files)
        if place.is_first:
            _report(outcome, reports)
        if outcome.problem:
            end(outcome.problem, WRONG_USAGE)
        if outcome.result["partial"]:
            done = len(outcome.result["losses"])
            end(f"interrupted after {done} of {settings.num_steps} steps", CHECK_FAILED)


@dataclass(frozen=True)
class Outcome:
    """The result of a run, the error of saving or profiling, and the profile."""

    result: dict[str, Any]
    problem: str | None
    profile: Summary | None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """On an error of training, exit with one line that names the command line's options."""
    import torch

    from tilesmith.training.data.tokens import DataError
    from tilesmith.training.running.checkpoint import CheckpointError
    from tilesmith.training.running.distributed import PlaceError
    from tilesmith.training.running.gradient_guard import GradientError
    from tilesmith.training.running.run import SettingsError

    try:
        yield
    except SettingsError as error:
        end(as_flags(str(error)), WRONG_USAGE)
    except PlaceError as error:
        end_alone(str(error), WRONG_USAGE)
    except DataError as error:
        end(f"--data: {error}", WRONG_USAGE)
    except CheckpointError as error:
        end(f"--resume: {error}", WRONG_USAGE)
    except GradientError as error:
        end(str(error), CHECK_FAILED)
    except torch.OutOfMemoryError as error:
        end_alone(f"out of GPU memory; try a smaller --batch-size: {str(error).splitlines()[0]}", WRONG_USAGE)
    except (MemoryError, ValueError) as error:
        if isinstance(error, ValueError) and not any(sign in str(error) for sign in TOO_LARGE):
            raise
        end_alone(f"out of memory; try smaller sizes or a smaller --batch-size: {error}", WRONG_USAGE)
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        if any(sign in first for sign in OUT_OF_MEMORY):
            end_alone(f"out of memory; try smaller sizes or a smaller --batch-size: {first}", WRONG_USAGE)
        if any(sign in first for sign in CONNECTION_LOST):
            end_alone(f"another process ended, and its message says why: {first}", CHECK_FAILED)
        raise


def end(message: str, status: int) -> NoReturn:
    """Exit with one line on standard error. All processes come here, but only the first one prints."""
    if os.environ.get("RANK", "0") == "0":
        print(f"tilesmith: {message}", file=sys.stderr)
    raise typer.Exit(status)


def end_alone(message: str, status: int) -> NoReturn:
    """Exit with one line on standard error that names this process, which the others do not follow."""
    place = f"process {os.environ['RANK']}: " if "RANK" in os.environ else ""
    print(f"tilesmith: {place}{message}", file=sys.stderr)
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


def _outcome(task: Task, settings: Settings, place: Place, resumed: Checkpoint | None, files: Files) -> Outcome:
    """Train, save and profile. Every process does the same: an error in one of them ends the run in all."""
    from tilesmith.training.running.phase_times import phase_milliseconds
    from tilesmith.training.running.run import Run

    run = Run(task, settings, place, resumed)
    try:
        problem = _trained(run, files)
        result = run.result(phase_milliseconds(run) if run.steps_done else {})
        profile = None
        if files.profile and not problem:
            profile, problem = _profiled(run, files.profile)
    finally:
        run.close()
    return Outcome(result, problem, profile)


def _trained(run: Run, files: Files) -> str | None:
    """Run all steps and write the checkpoints; return the error of saving, or None."""
    from tilesmith.training.running import checkpoint

    def require_room(path: Path) -> None:
        checkpoint.require_room(path, run.model, files=2 if files.save_every else 1)

    if files.save and (problem := _on_first(run, require_room, files.save)):
        end(problem, WRONG_USAGE)
    problem, last = None, run.settings.num_steps
    with run.stoppable(), progress_of(run) as report:
        while run.steps_done < last and not run.record.interrupted and not problem:
            until = min(last, run.steps_done + (files.save_every or last))
            run.train(report, until)
            if files.save:
                problem = _on_first(run, partial(_write, run.checkpoint()), files.save)
    return problem


def _write(taken: Checkpoint, path: Path) -> None:
    from tilesmith.training.running import checkpoint

    checkpoint.write(path, taken)


def _on_first(run: Run, write: Callable[[Path], None], path: Path) -> str | None:
    """Let the first process write; return the error of writing to all processes, or None."""
    from tilesmith.training.running.distributed import true_anywhere

    problem = None
    if run.place.is_first:
        try:
            write(path)
        except OSError as error:
            problem = f"--save: cannot write {path}: {error.strerror or error}"
    return (problem or "--save failed") if true_anywhere(problem is not None, run.place) else None


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


def _profiled(run: Run, folder: Path) -> tuple[Summary | None, str | None]:
    """Return the profile of a few steps more, and the error of writing it, or None."""
    from tilesmith.training.running.profiling import profiled

    try:
        return profiled(run, folder / f"rank{run.place.rank}" if run.place.processes > 1 else folder), None
    except OSError as error:
        return None, f"--profile: cannot write {folder}: {error.strerror or error}"


def _report(outcome: Outcome, reports: Reports) -> None:
    from tilesmith.lab.profile.summary import blocks
    from tilesmith.lab.report.terminal import show_block
    from tilesmith.training.results.provenance import stamped
    from tilesmith.training.results.report import run_page, summary

    if outcome.profile:
        for block in blocks(outcome.profile):
            show_block(console, block)
        for path, how in outcome.profile.files:
            console.print(f"{path}\n  {how}", soft_wrap=True, markup=False)
    for block in summary(outcome.result):
        show_block(console, block)
    result = stamped(outcome.result)
    if reports.json:
        write_json(reports.json, result)
    if reports.html:
        write_result(reports.html, run_page(result))
