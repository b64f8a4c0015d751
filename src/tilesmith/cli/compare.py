"""`tilesmith compare`: compare the versions of a model on the same parameters and data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tilesmith.cli.options import (
    Data,
    LlamaSizes,
    OpenFoldSizes,
    Reports,
    Schedule,
    TextData,
    given,
    listed,
    with_options,
)
from tilesmith.cli.terminal import CHECK_FAILED, console, refuse, write_json, write_result
from tilesmith.cli.train import one_line_errors, progress_of

compare = typer.Typer(
    name="compare",
    help="Compare the versions of a model on the same parameters and data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class Versions:
    variants: Annotated[list[str] | None, typer.Option(help="Versions, separated by commas. Default: all.")] = None


@compare.command("llama")
@with_options
def compare_llama(sizes: LlamaSizes, versions: Versions, schedule: Schedule, data: TextData, reports: Reports) -> None:
    """Compare Tiny LLaMA v1 to v4: first logits and gradients, then a timed training run of each.

    Exit status 1 if a version differs from v1, if a gradient is missing, or if the run was interrupted.
    """
    _compare("llama", {**given(sizes), **given(data)}, given(schedule), versions.variants, reports)


@compare.command("openfold")
@with_options
def compare_openfold(
    sizes: OpenFoldSizes, versions: Versions, schedule: Schedule, data: Data, reports: Reports
) -> None:
    """Compare Tiny OpenFold v1 to v4, like `tilesmith compare llama`."""
    _compare("openfold", {**given(sizes), **given(data)}, given(schedule), versions.variants, reports)


def _compare(
    model: str, fixed: dict[str, Any], wanted: dict[str, Any], variants: list[str] | None, reports: Reports
) -> None:
    with one_line_errors():
        from tilesmith.training.results.comparison import compared
        from tilesmith.training.results.provenance import stamped
        from tilesmith.training.running import options
        from tilesmith.training.running.distributed import alone

        task = options.task_of(model, fixed)
        chosen = listed("--variants", variants) or list(task.versions)
        if unknown := [name for name in chosen if name not in task.versions]:
            refuse(f"--variants {unknown[0]!r} is not one of {', '.join(task.versions)}")
        wanted = {**task.defaults, **wanted}
        settings = [options.settings_of({**wanted, "variant": name}, task.versions) for name in chosen]
        result = stamped(compared(task, settings[0], chosen, alone(), progress_of))
    _report(result, reports)
    if not all(one["passed"] for one in result["parity"]) or any(run["partial"] for run in result["variants"]):
        raise typer.Exit(CHECK_FAILED)


def _report(result: dict[str, Any], reports: Reports) -> None:
    from tilesmith.lab.report.terminal import show_block
    from tilesmith.training.results.report import comparison, comparison_page

    for block in comparison(result):
        show_block(console, block)
    if reports.json:
        write_json(reports.json, result)
    if reports.html:
        write_result(reports.html, comparison_page(result))
