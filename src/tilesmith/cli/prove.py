"""`tilesmith prove`: train a Hugging Face model patched and not, and say whether the difference is rounding."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tilesmith.cli.options import as_flags
from tilesmith.cli.terminal import CHECK_FAILED, console, refuse, write_json, write_result


def prove(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A family such as llama, gemma2 or gpt2, for a small model of it; or a name, folder or file of a "
            "Hugging Face configuration.",
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.")] = 200,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences per step.")] = 4,
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens per sequence.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of AdamW.")] = 3e-4,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16. Default: bfloat16 on a GPU, else float32.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data.")] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change the configuration: --set hidden_size=2048."),
    ] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Start from the weights of MODEL.")] = False,
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="Train on the bytes of a file.")] = None,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Run our kernels in the interpreter: slow, without a GPU.")
    ] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the curves.")] = None,
) -> None:
    """Train a Hugging Face model patched and not, and say whether the difference is rounding.

    Both runs start from the same weights and see the same data. A third run, unpatched and with other rounding, shows
    how much rounding changes: losses, gradient norms and weights of the patched run may differ as much.

    Exit status 1 if the difference is more than rounding.
    """
    with _one_line_errors():
        from tilesmith.training.proof.proving import Settings
        from tilesmith.training.proof.proving import prove as proof_of
        from tilesmith.training.proof.subject import Subject
        from tilesmith.training.results.provenance import stamped

        settings = Settings(steps, batch_size, seq_len, learning_rate, dtype, seed, data, interpret)
        subject = Subject(model, dict(_changed(one) for one in change or ()), pretrained)
        with _progress(steps) as progress:
            proof = stamped(proof_of(subject, settings, progress))
    _report(proof, json, html)
    if not proof["is_rounding"]:
        raise typer.Exit(CHECK_FAILED)


def _changed(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        refuse(f"--set is {text!r}, but must be NAME=VALUE")
    try:
        return name, json_module.loads(value)
    except ValueError:
        return name, value  # a word


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from tilesmith.cli.train import one_line_errors
    from tilesmith.training.proof.subject import SubjectError

    with one_line_errors():
        try:
            yield
        except SubjectError as error:
            refuse(f"prove: {as_flags(str(error))}")


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[str, int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=steps)
        yield lambda run, done: bar.update(task, description=run, completed=done)


def _report(proof: dict[str, Any], json: Path | None, html: Path | None) -> None:
    from tilesmith.lab.report.terminal import show_block
    from tilesmith.training.proof.report import blocks, proof_page

    for block in blocks(proof):
        show_block(console, block)
    if json:
        write_json(json, proof)
    if html:
        write_result(html, proof_page(proof))
