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
    """How to load a spec, in a form that a child process can repeat.

    `fields(spec, case, dtype)` returns the names that can be swept, `configured(**fields)` sets them in a context, and
    `planned(spec, case, dtype, mode, target)` returns the launches of a call. Without these functions, swept fields are
    arguments of the operator. `taken(spec, case, dtype, mode)` returns the provider that `auto` chooses.
    """

    load: Callable[[], Spec]
    file: str | None = None
    fields: Fields | None = None
    configured: Configured | None = None
    planned: Planned | None = None
    taken: Taken | None = None


@dataclass(frozen=True)
class Unit:
    """One provider on one case, dtype and mode, with one point of a sweep."""

    case: Case
    dtype: torch.dtype
    mode: str
    provider: str
    config: dict[str, Any] = field(default_factory=dict)

    def row(self, op: str, source: Source, **known: Any) -> Row:
        """Return a row that identifies this unit and has no results yet."""
        dtype = str(self.dtype).removeprefix("torch.")
        return Row(
            op, self.case.name, dict(self.case.sizes), dtype, self.mode, self.provider,
            file=source.file, config=dict(self.config), **known,
        )  # fmt: skip


def check_key(unit: Unit) -> str:
    """Return a key of everything that a check depends on; one check covers all modes."""
    return f"{unit.case!r} {unit.dtype} {sorted(unit.config.items())}"


def configuration(source: Source, config: dict[str, Any]) -> AbstractContextManager[None]:
    """Return the context of a call: it sets the swept fields and selects the operator's own kernels."""
    return nullcontext() if source.configured is None else source.configured(**config)


def with_arguments(spec: Spec, source: Source, config: dict[str, Any]) -> Spec:
    """Return the spec with swept fields bound as arguments, where the source does not configure kernels itself."""
    return replace(spec, op=partial(spec.op, **config)) if config and source.configured is None else spec


def sweepable_arguments(spec: Spec) -> list[str]:
    """Return the arguments that a sweep may set: those that are not inputs."""
    given = spec.inputs(spec.cases[0], spec.dtypes[0], "cpu")
    return [name for name in inspect.signature(spec.op).parameters if name not in given]
