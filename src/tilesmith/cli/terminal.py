"""The console, one-line errors, the operators' specs, and result files, for all commands."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from tilesmith import storage

if TYPE_CHECKING:
    from tilesmith.spec import Spec

WRONG_USAGE = 2
CHECK_FAILED = 1

console = Console(highlight=False)
"""The console. rich writes no control characters where the output is piped."""


def refuse(message: str) -> NoReturn:
    """Exit with status 2 and one line on standard error."""
    print(f"tilesmith: {message}", file=sys.stderr)
    raise typer.Exit(WRONG_USAGE)


def operators() -> Mapping[str, Spec]:
    """Return the spec of every operator, by name."""
    try:
        from tilesmith.ops import SPECS
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        refuse(f"the operators need {error.name}, which is not installed; `tilesmith doctor` says how to get it")
    return SPECS


def write_result(path: Path, content: str) -> None:
    """Write a result file atomically; exit with one line where it cannot be written."""
    try:
        storage.write_atomically(path, content)
    except OSError as error:
        refuse(f"cannot write {path}: {error.strerror or error}")


def write_json(path: Path, result: Any) -> None:
    """Write strict JSON: infinity and NaN become null."""
    write_result(path, json.dumps(_strict(result), indent=1, allow_nan=False) + "\n")


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _strict(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return value
