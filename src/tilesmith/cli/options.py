"""Options that several commands share: said once as the fields of a dataclass, a command takes any number of those."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer takes it: each parameter that is a dataclass stands for its fields, every one an option."""
    groups: list[tuple[str, Any]] = [
        (name, hint) for name, hint in get_type_hints(command).items() if is_dataclass(hint)
    ]

    def taking_options(**values: Any) -> None:
        command(**{name: group(**{one.name: values[one.name] for one in fields(group)}) for name, group in groups})

    hints = {name: hint for _, group in groups for name, hint in get_type_hints(group, include_extras=True).items()}
    defaults = {one.name: one.default for _, group in groups for one in fields(group)}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
        for name, hint in hints.items()
    ]
    taking_options.__name__, taking_options.__doc__ = command.__name__, command.__doc__
    taking_options.__annotations__ = hints
    taking_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # a function may have it
    return taking_options


def given(group: Any) -> dict[str, Any]:
    """The options of a group that the user has given."""
    return {name: value for name, value in asdict(group).items() if value is not None}


def as_flags(message: str) -> str:
    """A message about settings by their names in the code, with those that users know: --hidden-dim for hidden_dim.

    Names of one word are English too, so they count as names at the start only.
    """
    names = [one.name for group in (LlamaSizes, OpenFoldSizes, Choices, Schedule) for one in fields(group)]
    several = "|".join(name for name in names if "_" in name)
    single = "|".join(name for name in names if "_" not in name)
    return re.sub(rf"\b({several})\b|^({single})\b", lambda found: f"--{found[0].replace('_', '-')}", message)


@dataclass(frozen=True)
class LlamaSizes:
    """Sizes of Tiny LLaMA. What is left out has the model's default, or the checkpoint's."""

    hidden_dim: Annotated[int | None, typer.Option(help="Width of the stream. Default: 512.")] = None
    num_layers: Annotated[int | None, typer.Option(help="Default: 8.")] = None
    num_heads: Annotated[int | None, typer.Option(help="Query heads. Default: 8.")] = None
    num_kv_heads: Annotated[int | None, typer.Option(help="Key and value heads. Default: half as many.")] = None
    seq_len: Annotated[int | None, typer.Option(help="Tokens of a sequence. Default: 128.")] = None


@dataclass(frozen=True)
class OpenFoldSizes:
    """Sizes of Tiny OpenFold. What is left out has the model's default, or the checkpoint's."""

    num_residues: Annotated[int | None, typer.Option(help="Of a chain. Default: 64.")] = None
    num_sequences: Annotated[int | None, typer.Option(help="Of an alignment. Default: 16.")] = None
    msa_dim: Annotated[int | None, typer.Option(help="Width of the alignment's stream. Default: 64.")] = None
    pair_dim: Annotated[int | None, typer.Option(help="Width of the pairs' stream. Default: 128.")] = None
    num_blocks: Annotated[int | None, typer.Option(help="Evoformer blocks. Default: 4.")] = None
    head_dim: Annotated[int | None, typer.Option(help="Columns of a head. Default: 32, or fewer to divide.")] = None
    outer_dim: Annotated[int | None, typer.Option(help="Width of outer products. Default: 32.")] = None


@dataclass(frozen=True)
class Choices:
    """What only a single run has. What is left out has its default, or the checkpoint's."""

    variant: Annotated[str | None, typer.Option(help="v1, v2, v3 or v4. Default: v1.")] = None
    accumulate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take each batch in N pieces. Default: 1.")
    ] = None
    shard: Annotated[bool | None, typer.Option("--shard", help="Under torchrun: shard the model (FSDP).")] = None


@dataclass(frozen=True)
class Schedule:
    """How long and on what to train. What is left out has its default, or the checkpoint's."""

    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples, all processes. Default: 8; openfold 4.")] = (
        None
    )
    num_steps: Annotated[int | None, typer.Option(min=1, help="Steps in all. Default: 100.")] = None
    learning_rate: Annotated[float | None, typer.Option(help="AdamW's. Default: 0.0003.")] = None
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16, to compute in. Default: float32.")] = None
    compile: Annotated[bool | None, typer.Option("--compile", help="Use torch.compile.")] = None
    eager: Annotated[bool | None, typer.Option("--eager", help="No CUDA graphs: launch every kernel anew.")] = None


@dataclass(frozen=True)
class Data:
    """What to learn. It cannot change when a run goes on from a checkpoint."""

    seed: Annotated[int | None, typer.Option(min=0, help="Of data and initial parameters. Default: 0.")] = None


@dataclass(frozen=True)
class TextData(Data):
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="Learn the bytes of a file.")] = None


@dataclass(frozen=True)
class Reports:
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON.")] = None
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that works offline.")] = None
