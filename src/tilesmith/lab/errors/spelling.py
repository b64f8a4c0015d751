"""Which name an error about an unknown name may mean."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches

_LIKENESS = 0.75
_ATTRIBUTE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_NAME = re.compile(r"\b(\w+)'? is not defined")


def did_you_mean(message: str, source: str) -> str:
    """Return "Did you mean …?" for an unknown name that resembles one of its module or of the source; else ""."""
    attribute, name = _ATTRIBUTE.search(message), _NAME.search(message)
    if attribute is not None:
        wrong, prefix = attribute[2], {"triton.language": "tl"}.get(attribute[1], attribute[1]) + "."
        known = [one for one in dir(sys.modules.get(attribute[1])) if not one.startswith("_")]
    elif name is not None:
        wrong, prefix, known = name[1], "", sorted({*_defined(source)})
    else:
        return ""
    if wrong in known:  # spelt right, but without a value at this place
        return ""
    close = get_close_matches(wrong, known, 1, _LIKENESS)
    return f"Did you mean {prefix}{close[0]}?" if close else ""


def _defined(source: str) -> Iterator[str]:
    """Yield the names that the source defines: variables, arguments and functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
