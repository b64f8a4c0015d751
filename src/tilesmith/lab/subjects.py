"""Find the spec of what a user passes to `ts.lab.check` or `ts.lab.bench`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tilesmith
from tilesmith.lab.bench.running.bench_units import Source
from tilesmith.spec import Spec, SpecError, load_file, unknown_operator

What = Spec | Callable[..., Any] | str | Path
"""A spec, an operator, the name of an operator of this package, or a file with a SPEC."""


@dataclass(frozen=True)
class Subject:
    """A spec and its source. Where `portable` is false, a child process cannot load the spec."""

    spec: Spec
    source: Source
    portable: bool


def subject_of(what: What) -> Subject:
    """Return the subject. Raises SpecError for a name or a file without a spec, TypeError for anything else."""
    if isinstance(what, Spec):
        return _of_spec(what)
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".py")):
        path = Path(what)
        return Subject(load_file(path), Source(partial(load_file, path), file=str(path)), portable=True)
    if isinstance(what, str):
        specs = _operators().SPECS
        if what not in specs:
            raise SpecError(unknown_operator(what, list(specs)))
        return _of_spec(specs[what])
    if callable(what):
        return _of_spec(_spec_of_function(what))
    raise TypeError(f"expected an operator, its name, a Spec or a file, not {type(what).__name__}")


def _of_spec(spec: Spec) -> Subject:
    specs: Mapping[str, Spec] = _operators().SPECS
    if specs.get(spec.name) is spec:
        return Subject(spec, _operators().source_of(spec, spec.name), portable=True)
    return Subject(spec, Source(lambda: spec), portable=False)


def _spec_of_function(function: Callable[..., Any]) -> Spec:
    specs: Mapping[str, Spec] = _operators().SPECS
    declared = getattr(sys.modules.get(function.__module__), "SPEC", None)
    for spec in (*specs.values(), declared):
        if isinstance(spec, Spec) and spec.op is function:
            return spec
    name = getattr(function, "__name__", repr(function))
    raise SpecError(f"{name} has no SPEC beside it; pass a Spec, which names the reference and the sizes to try")


def _operators() -> Any:
    return importlib.import_module(tilesmith.OPERATOR_SOURCE)
