"""Options that several commands share: each group is a dataclass, and a command takes several groups."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tilesmith.cli.terminal import refuse

DTYPES = "float32, float16, bfloat16 or all; separated by commas, or the option repeated."
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help=DTYPES)]


def listed(option: str, values: Sequence[str] | None) -> list[str]:
    """Return the names that an option holds, separated by commas or repeated. Exits where it names nothing."""
    names = []
    for text in values or ():
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            refuse(f"{option} {text!r} names nothing")
        names += parts
    return list(dict.fromkeys(names))


def listed_dtypes(values: Sequence[str] | None) -> list[str]:
    """Return the dtypes that --dtype holds, by their full names; for all, every one."""
    from tilesmith.lab.bench.selection import SHORT_DTYPES

    return [SHORT_DTYPES.get(name, name) for name in listed("--dtype", values)]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command for Typer: each field of its dataclass parameters is an option."""
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
    taking_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions accept it
    return taking_options


def given(group: Any) -> dict[str, Any]:
    """Return the options of a group that the user gave."""
    return {name: value for name, value in asdict(group).items() if value is not None}


def as_flags(message: str) -> str:
    """Return a message with option names in place of the code's names: --hidden-dim for hidden_dim.

    A name of one word may be an ordinary word, so it is replaced only at the start of the message.
    """
    names = [one.name for group in (LlamaSizes, OpenFoldSizes, Choices, Schedule, TextData) for one in fields(group)]
    several = "|".join(name for name in names if "_" in name)
    single = "|".join(name for name in names if "_" not in name)
    return re.sub(rf"\b({several})\b|^({single})\b", lambda found: f"--{found[0].replace('_', '-')}", message)


@dataclass(frozen=True)
class LlamaSizes:
    """Sizes of Tiny LLaMA; the defaults are the model's, or the checkpoint's."""

    hidden_dim: Annotated[int | None, typer.Option(help="Width of the residual stream. Default: 512.")] = None
    num_layers: Annotated[int | None, typer.Option(help="Decoder layers. Default: 8.")] = None
    num_heads: Annotated[int | None, typer.Option(help="Query heads. Default: 8.")] = None
    num_kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Key and value heads. Default: half of --num-heads.")
    ] = None
    seq_len: Annotated[int | None, typer.Option(help="Tokens per sequence. Default: 128.")] = None


@dataclass(frozen=True)
class OpenFoldSizes:
    """Sizes of Tiny OpenFold; the defaults are the model's, or the checkpoint's."""

    num_residues: Annotated[int | None, typer.Option(help="Residues per chain. Default: 64.")] = None
    num_sequences: Annotated[int | None, typer.Option(help="Sequences per alignment. Default: 16.")] = None
    msa_dim: Annotated[int | None, typer.Option(help="Channels of the alignment. Default: 64.")] = None
    pair_dim: Annotated[int | None, typer.Option(help="Channels of the pairs. Default: 128.")] = None
    num_blocks: Annotated[int | None, typer.Option(help="Evoformer blocks. Default: 4.")] = None
    head_dim: Annotated[
        int | None, typer.Option(min=1, help="Channels per head. Default: 32 or a smaller divisor.")
    ] = None
    outer_dim: Annotated[int | None, typer.Option(help="Channels of outer products. Default: 32.")] = None


@dataclass(frozen=True)
class Choices:
    """Options of a single run; the defaults may come from a checkpoint."""

    variant: Annotated[str | None, typer.Option(help="v1, v2, v3 or v4. Default: v1.")] = None
    accumulate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Split each batch into N micro-batches. Default: 1.")
    ] = None
    shard: Annotated[
        bool | None, typer.Option("--shard/--no-shard", help="Shard the model with FSDP; needs torchrun.")
    ] = None


@dataclass(frozen=True)
class Schedule:
    """Batches, steps and precision; the defaults may come from a checkpoint."""

    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of all processes. Default: 8; openfold 4.")] = (
        None
    )
    num_steps: Annotated[int | None, typer.Option(min=1, help="Total steps. Default: 100.")] = None
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of AdamW. Default: 0.0003.")] = None
    dtype: Annotated[str | None, typer.Option(help="Compute dtype, float32 or bfloat16. Default: float32.")] = None
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile.")] = None
    eager: Annotated[bool | None, typer.Option("--eager/--no-eager", help="Use no CUDA graphs.")] = None


@dataclass(frozen=True)
class Data:
    """The data. A resumed run must have the same."""

    seed: Annotated[int | None, typer.Option(min=0, help="Seed of data and parameters. Default: 0.")] = None


@dataclass(frozen=True)
class TextData(Data):
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="Train on the bytes of a file.")] = None


@dataclass(frozen=True)
class Reports:
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON.")] = None
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page.")] = None
