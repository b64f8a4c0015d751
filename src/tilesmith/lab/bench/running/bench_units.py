"""A benchmark unit is one provider on one case, dtype and mode. A source tells a child process how to load the spec."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from tilesmith.lab.bench.result import Row
from tilesmith.spec import Case, Spec

Configured = Callable[..., AbstractContextManager[None]]
Planned = Callable[[Spec, Case, torch.dtype, str, str], list[dict[str, Any]]]
Fields = Callable[[Spec, Case, torch.dtype], list[str]]
Taken = Callable[[Spec, Case, torch.dtype, str], str]


@dataclass(frozen=True)
class Source:
    """Where a spec comes from, in a form that a child process can load it from again.

    `fields(spec, case, dtype)` names what can be swept, `configured(**fields)` sets it, and `planned(spec, case, dtype,
    mode, target)` says what would be launched. Without them, swept fields are arguments of the operator.
    `taken(spec, case, dtype, mode)` says whether its kernels or PyTorch compute such a call when nobody insists.
    """

    load: Callable[[], Spec]
    file: str | None = None
    fields: Fields | None = None
    configured: Configured | None = None
    planned: Planned | None = None
    taken: Taken | None = None


@dataclass(frozen=True)
class Unit:
    case: Case
    dtype: torch.dtype
    mode: str
    provider: str
    config: dict[str, Any] = field(default_factory=dict)

    def row(self, op: str, source: Source, **known: Any) -> Row:
        """A row of this unit that holds nothing yet but whose it is."""
        dtype = str(self.dtype).removeprefix("torch.")
        return Row(
            op, self.case.name, dict(self.case.sizes), dtype, self.mode, self.provider,
            file=source.file, config=dict(self.config), **known,
        )  # fmt: skip


def check_key(unit: Unit) -> str:
    """What a check holds for: it covers all modes at once."""
    return f"{unit.case!r} {unit.dtype} {sorted(unit.config.items())}"


def configuration(source: Source, config: dict[str, Any]) -> AbstractContextManager[None]:
    """What surrounds a call: the swept fields, and that the operator's own kernels compute."""
    return nullcontext() if source.configured is None else source.configured(**config)


def with_arguments(spec: Spec, source: Source, config: dict[str, Any]) -> Spec:
    """The spec whose operator gets swept fields as arguments, where that is how they reach its kernels."""
    return replace(spec, op=partial(spec.op, **config)) if config and source.configured is None else spec


def sweepable_arguments(spec: Spec) -> list[str]:
    """Arguments of an operator that a sweep may set: those that are not among its inputs."""
    given = spec.inputs(spec.cases[0], spec.dtypes[0], "cpu")
    return [name for name in inspect.signature(spec.op).parameters if name not in given]
