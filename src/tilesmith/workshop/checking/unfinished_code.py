"""The stage "parses": the learner's file is valid Python, has no gap left, and defines the required function."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

_MOST_LINES_NAMED = 6


def first_problem(source: str, file_name: str, function: str) -> str | None:
    """Return why a file cannot be run yet; None where it can."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return _syntax(error, file_name)
    except ValueError as error:  # such as a null byte
        return f"{file_name} cannot be read as Python: {error}"
    gaps = sorted({*_ellipses(tree), *_todo_comments(source)})
    if gaps:
        return _gaps_left(gaps, source, file_name)
    if function not in _defined(tree):
        return (
            f"{file_name} defines no function {function!r}, but the check calls this function.\n"
            "Rename your function back, or start over with `tilesmith learn reset`."
        )
    return None


def _syntax(error: SyntaxError, file_name: str) -> str:
    text = (error.text or "").rstrip().expandtabs()
    indent = len(text) - len(text.lstrip())
    place = " " * max(0, (error.offset or 1) - 1 - indent) + "^"
    quoted = f"\n    {text.strip()}\n    {place}" if text.strip() else ""
    return f"{file_name}:{error.lineno} is not valid Python: {error.msg}.{quoted}"


def _gaps_left(lines: list[int], source: str, file_name: str) -> str:
    text = source.splitlines()[lines[0] - 1].strip()
    if len(lines) == 1:
        return f"{file_name}:{lines[0]} is the last gap to fill:\n    {text}"
    named = ", ".join(map(str, lines[:_MOST_LINES_NAMED])) + (", …" if len(lines) > _MOST_LINES_NAMED else "")
    return f"{file_name}:{lines[0]} is a gap to fill:\n    {text}\n{len(lines)} gaps are left, on lines {named}."


def _ellipses(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with `...`, except in an index such as x[..., None]."""
    inside_index = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in inside_index:
            yield node.lineno


def _todo_comments(source: str) -> Iterator[int]:
    """Yield the lines whose comment contains TODO."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "TODO" in token.string:
            yield token.start[0]


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports at its top level."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names
