"""`tilesmith compare`: the versions of a model side by side, on the same parameters and data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tilesmith.cli.options import Data, LlamaSizes, OpenFoldSizes, Reports, Schedule, TextData, given, with_options
from tilesmith.cli.terminal import CHECK_FAILED, console, write_json, write_result
from tilesmith.cli.train import one_line_errors, progress_of

compare = typer.Typer(
    name="compare",
    help="The versions of a model side by side, on the same parameters and data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class Versions:
    variants: Annotated[str | None, typer.Option(help="Versions, with commas. Default: all.")] = None


@compare.command("llama")
@with_options
def compare_llama(sizes: LlamaSizes, versions: Versions, schedule: Schedule, data: TextData, reports: Reports) -> None:
    """Tiny LLaMA, v1 to v4: logits and gradients first, then each is trained and timed.

    Exit status 1 if a version does not compute what v1 computes, if a parameter gets no gradient, or if the run was
    interrupted.
    """
    _compare("llama", {**given(sizes), **given(data)}, given(schedule), versions.variants, reports)


@compare.command("openfold")
@with_options
def compare_openfold(
    sizes: OpenFoldSizes, versions: Versions, schedule: Schedule, data: Data, reports: Reports
) -> None:
    """Tiny OpenFold, v1 to v4, as `tilesmith compare llama` does it."""
    _compare("openfold", {**given(sizes), **given(data)}, given(schedule), versions.variants, reports)


def _compare(model: str, fixed: dict[str, Any], wanted: dict[str, Any], variants: str | None, reports: Reports) -> None:
    with one_line_errors():
        from tilesmith.training import setup
        from tilesmith.training.compare import compared
        from tilesmith.training.distributed import alone
        from tilesmith.training.provenance import stamped

        task = setup.task_of(model, fixed)
        chosen = list(task.versions) if variants is None else [name.strip() for name in variants.split(",")]
        wanted = {**task.defaults, **wanted}
        settings = [setup.settings_of({**wanted, "variant": name}, task.versions) for name in chosen]
        result = stamped(compared(task, settings[0], chosen, alone(), progress_of))
    _tell(result, reports)
    if not all(one["passed"] for one in result["parity"]) or any(run["partial"] for run in result["variants"]):
        raise typer.Exit(CHECK_FAILED)


def _tell(result: dict[str, Any], reports: Reports) -> None:
    from tilesmith.lab.report.terminal import show_block
    from tilesmith.training.report import comparison, comparison_page

    for block in comparison(result):
        show_block(console, block)
    if reports.json:
        write_json(reports.json, result)
    if reports.html:
        write_result(reports.html, comparison_page(result))
