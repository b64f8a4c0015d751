"""TOML files, read strictly: every key with its type, and no key that nobody takes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from tilesmith.workshop.course.exercise import ExerciseError

# Python 3.10 has no TOML reader.
_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises ExerciseError with one line."""
    try:
        content: dict[str, Any] = _toml.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExerciseError(f"{path.parent}: there is no {path.name} in this folder") from None
    except (OSError, ValueError) as error:
        raise ExerciseError(f"{path}: {error}") from None
    return content


class Table:
    """A TOML table: the reader takes every key with its type; `done` refuses the keys that are left."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self._content = dict(content)
        self.where = where

    def take(self, key: str, kind: type | UnionType, default: Any = None, *, needed: bool = False) -> Any:
        if key not in self._content:
            if needed:
                raise ExerciseError(f"{self.where}: {key!r} is missing")
            return default
        value = self._content.pop(key)
        value = float(value) if kind is float and isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(value, kind):
            raise ExerciseError(f"{self.where}: {key!r} is {value!r}, which is not a {getattr(kind, '__name__', kind)}")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        values = self.take(key, list, list(default))
        for value in values:
            if not isinstance(value, str):
                raise ExerciseError(f"{self.where}: {key!r} holds {value!r}, which is not a string")
        return tuple(values)

    def tables(self, key: str) -> list[Table]:
        return [Table(one, f"{self.where}: {key} {number}") for number, one in enumerate(self.take(key, list, []), 1)]

    def rest(self) -> dict[str, Any]:
        left, self._content = self._content, {}
        return left

    def done(self) -> None:
        if self._content:
            raise ExerciseError(f"{self.where}: unknown key {', '.join(map(repr, self._content))}")
