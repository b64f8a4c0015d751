"""Sweeps: all combinations of values of some fields of a kernel's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any


class SweepError(Exception):
    """The sweep is not valid. The message is one line for the user."""


def parse(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse `["BLOCK_SIZE=64,128", "num_warps=4"]` into values by field. Raises SweepError."""
    fields: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not all(value.strip() for value in values.split(",")):
            raise SweepError(f"--sweep {text!r}: expected FIELD=VALUE,VALUE,… such as BLOCK_SIZE=64,128,256")
        if name.strip() in fields:
            raise SweepError(f"--sweep: {name.strip()} is given twice")
        fields[name.strip()] = [_value(value.strip()) for value in values.split(",")]
    return fields


def points(fields: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations; one empty point where nothing is swept."""
    return [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
