"""`tilesmith bench`: measure operators beside their rivals and against the limits of the device."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilesmith.cli.options import Dtypes, listed, listed_dtypes
from tilesmith.cli.terminal import CHECK_FAILED, console, refuse, write_json, write_result

if TYPE_CHECKING:
    from tilesmith.lab.bench.running.child_process import Job
    from tilesmith.lab.bench.selection import Selection

DEFAULT_DEVICE = "h200"
SHORT_DEVICES = {"4090": "rtx4090"}
MOST_DIGITS = 12  # of a size: no GPU holds a tensor of a longer one
MOST_DRAWN = 100_000  # cases an operator


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP… | FILE.py…]", help="Operators, or files with a SPEC. Default: all."),
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option(help="Case names, comma-separated, or all. Default: the large cases.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="Set a size of the cases; may be repeated.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=0, help="Short for --size rows=N.")] = None,
    cols: Annotated[int | None, typer.Option(min=0, help="Short for --size cols=N.")] = None,
    dtype: Dtypes = None,
    mode: Annotated[list[str] | None, typer.Option(help="fwd, bwd, both, comma-separated. Default: fwd,bwd.")] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="Rival names, comma-separated, or none. Default: all.")
    ] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=A,B", help="Measure each value; may be repeated.")
    ] = None,
    draw: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_DRAWN, metavar="N", help="Survey: time N cases an operator, drawn at random."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which cases --draw draws.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes that compile for --draw. Default: one a core, 16 at most.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Print the cases of --draw as JSON lines.")] = False,
    warm: Annotated[bool, typer.Option("--warm", help="Keep the inputs in the L2 cache.")] = False,
    measure_limits: Annotated[bool, typer.Option("--measure-limits", help="Measure the GPU's limits again.")] = False,
    device: Annotated[str | None, typer.Option(help="Predict for a device: h200, h100, b200, a100, mi300x, …")] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="OLD.json", help="Compare with the JSON of an older run.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows as CSV.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained page.")] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the charts as an image (needs matplotlib).")
    ] = None,
) -> None:
    """Measure operators beside their rivals and against the limits of the device.

    Every operator is checked first; a wrong result gets no time. Without a GPU, or with --device, the least time that
    the datasheet allows is predicted instead. Exit status 1 if an operator is wrong or slower than --baseline, or if
    the run was interrupted.

    With --draw the cases are drawn at random from a distribution of what people run. By default a survey leaves out
    rivals that compile for seconds at each size; --against all takes them too.
    """
    if draw is not None:
        _refuse_with_draw(cases=cases, size=size, rows=rows, cols=cols, dtype=dtype, mode=mode, sweep=sweep,
                          device=device, baseline=baseline, csv=csv, png=png, warm=warm or None)  # fmt: skip
        from tilesmith.cli.survey import survey

        survey(
            what or [], draw=draw, seed=seed, against=listed("--against", against) or None, jobs=jobs, listing=listing,
            limits_anew=measure_limits, json=json, html=html,
        )  # fmt: skip
        return
    if listing or jobs is not None or seed:
        refuse("--seed, --jobs and --list need --draw N")
    import torch

    from tilesmith.lab.bench.selection import Selection

    measuring = torch.cuda.is_available() and device is None
    if not measuring and (warm or measure_limits):
        refuse("--warm and --measure-limits need a GPU, and no --device: a prediction measures nothing")
    old = _read_baseline(baseline, measuring)
    selection = Selection(
        cases=listed("--cases", cases) or None,
        sizes=_sizes(size or [], rows, cols),
        dtypes=listed_dtypes(dtype) or None,
        modes=listed("--mode", mode) or None,
        rivals=listed("--against", against) or None,
        sweep=_swept(sweep or []),
        predicting=not measuring,
    )
    result = _run(_jobs(what or [], selection, _start(measuring, device, warm, measure_limits)), measuring)
    try:
        _write(result, [(json, write_json), (csv, _csv), (html, _html), (png, _png)])
    finally:
        _show(result)
    if _refused(result) or _regressed(old, result) or result["partial"]:
        raise typer.Exit(CHECK_FAILED)


def _refuse_with_draw(**options: object) -> None:
    """Refuse options that have no meaning for drawn cases."""
    given = [f"--{name}" for name, value in options.items() if value not in (None, [])]
    if given:
        refuse(f"--draw chooses cases, dtypes and modes itself, so {', '.join(given)} cannot be given with it")


def _sizes(texts: Sequence[str], rows: int | None, cols: int | None) -> dict[str, int]:
    sizes: dict[str, int] = {}
    short = [f"{name}={value}" for name, value in {"rows": rows, "cols": cols}.items() if value is not None]
    for text in [*short, *texts]:
        name, _, value = text.partition("=")
        if not value.isdecimal() or len(value) > MOST_DIGITS:
            refuse(f"--size {text!r}: expected NAME=N such as rows=4096, of at most {MOST_DIGITS} digits")
        if name in sizes:
            refuse(f"--size: {name} is given twice")
        sizes[name] = int(value)
    return sizes


def _swept(texts: Sequence[str]) -> dict[str, list[Any]]:
    from tilesmith.lab.bench.sweeps import SweepError, parse

    try:
        return parse(texts)
    except SweepError as error:
        refuse(str(error))


def _read_baseline(path: Path | None, measuring: bool) -> Any | None:
    import json

    if path is None:
        return None
    if not measuring:
        refuse("--baseline compares measured times, but this run measures nothing: no GPU, or --device is given")
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        refuse(f"--baseline {path}: {error}")


def _start(measuring: bool, device_name: str | None, warm: bool, limits_anew: bool) -> Callable[..., Any]:
    from tilesmith.hardware.devices import device
    from tilesmith.lab.bench.running.measurer import start_measuring
    from tilesmith.lab.bench.running.predictor import start_predicting

    if measuring:
        return partial(start_measuring, warm=warm, limits_anew=limits_anew)
    named = SHORT_DEVICES.get(device_name or "", device_name or DEFAULT_DEVICE)
    try:
        device(named)
    except ValueError as error:
        refuse(f"--{error}")
    return partial(start_predicting, device_name=named)


def _jobs(names: Sequence[str], selection: Selection, start: Callable[..., Any]) -> list[Job]:
    from tilesmith.cli.check import chosen_specs
    from tilesmith.cli.operator_source import source_of
    from tilesmith.lab.bench.measuring.timed_calls import providers
    from tilesmith.lab.bench.running.child_process import Job
    from tilesmith.lab.bench.selection import SelectionError, units
    from tilesmith.spec import SpecError

    specs = chosen_specs(names)
    known = list(dict.fromkeys(provider for spec in specs for provider in providers(spec)))
    unknown = [name for name in selection.rivals or () if name not in (*known, "none")]
    if unknown:
        refuse(f"--against: {', '.join(unknown)} is not one of {', '.join(known[1:])}")
    if selection.predicting:
        selection = replace(selection, rivals=[])
    try:
        selections = selection.among(specs)
    except SelectionError as error:
        refuse(f"--cases: {error}")
    jobs = []
    for name, spec, chosen in zip(names or [spec.name for spec in specs], specs, selections, strict=True):
        source = source_of(spec, name)
        try:
            jobs.append(Job(spec.name, source, units(spec, source, chosen), start))
        except (SelectionError, SpecError) as error:
            refuse(str(error))
        if chosen.takes_largest_case:
            swept = f"swept on {jobs[-1].units[0].case.name}, the largest of {len(spec.cases)} cases"
            console.print(f"{spec.name}: {swept}; --cases chooses others", markup=False, soft_wrap=True)
    return jobs


def _run(jobs: Sequence[Job], measuring: bool) -> dict[str, Any]:
    from rich.progress import Progress

    from tilesmith.lab.bench.measuring.sensors import first_gpu_sensors
    from tilesmith.lab.bench.result import Row
    from tilesmith.lab.bench.running.child_process import Event, Started
    from tilesmith.lab.bench.running.run_jobs import collect

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting", total=sum(len(job.units) for job in jobs))

        def report(job: Job, event: Event) -> None:
            if isinstance(event, Started):
                unit = event.unit
                progress.update(task, description=f"{job.op} {unit.case.name} {unit.mode} {unit.provider}")
            progress.advance(task, isinstance(event, Row))

        return collect(jobs, sensors=first_gpu_sensors() if measuring else None, report=report)


def _write(
    result: dict[str, Any], writers: Sequence[tuple[Path | None, Callable[[Path, dict[str, Any]], None]]]
) -> None:
    for path, write in writers:
        if path is not None:
            write(path, result)


def _csv(path: Path, result: dict[str, Any]) -> None:
    import json

    text = io.StringIO()
    rows = [
        {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
        for row in result["rows"]
    ]
    writer = csv_format.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    write_result(path, text.getvalue())


def _html(path: Path, result: dict[str, Any]) -> None:
    from tilesmith.lab.bench.output.page import write_html

    write_result(path, write_html(result))


def _png(path: Path, result: dict[str, Any]) -> None:
    from tilesmith import storage
    from tilesmith.lab.bench.output.charts import ChartError, png

    try:
        storage.write_atomically(path, png(result))
    except ChartError as error:
        refuse(f"--png: {error}")
    except OSError as error:
        refuse(f"cannot write {path}: {error.strerror or error}")


def _show(result: dict[str, Any]) -> None:
    from tilesmith.lab.bench.output.table import blocks
    from tilesmith.lab.report.terminal import show_block

    for block in blocks(result):
        show_block(console, block)


def _refused(result: dict[str, Any]) -> bool:
    from tilesmith.lab.bench.result import OURS

    return any(row["error"] for row in result["rows"] if row["provider"] == OURS)


def _regressed(old: Any | None, result: dict[str, Any]) -> bool:
    from tilesmith.lab.bench.output.regressions import BaselineError, changes_since, regressions

    if old is None:
        return False
    try:
        changes = changes_since(old, result)
    except BaselineError as error:
        refuse(f"--baseline: {error}")
    for change in changes:
        if change.verdict != "equal":
            console.print(f"{change.verdict}: {change.name}: {change.text}", markup=False, soft_wrap=True)
    console.print(
        f"{sum(change.verdict == 'equal' for change in changes)} of {len(changes)} rows equal to the baseline"
    )
    return bool(regressions(changes))
