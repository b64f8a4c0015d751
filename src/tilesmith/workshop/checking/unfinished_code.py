"""The stage "parses": the learner's file is valid Python, has no gap left, and defines the required function."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

_MOST_LINES_NAMED = 6
NOT_UTF_8 = "{} is not saved as UTF-8. Save it again, and choose the encoding UTF-8 in your editor."


def first_problem(file: Path, function: str) -> str | None:
    """Return why a file cannot be run yet; None where it can."""
    content, file_name = file.read_bytes(), file.name
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        source = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return NOT_UTF_8.format(file_name)
    if "\0" in source:  # UTF-16 without a mark at its start
        return NOT_UTF_8.format(file_name)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return _syntax(error, file_name)
    gaps = sorted({*_ellipses(tree), *_todo_comments(source)})
    if gaps:
        return _gaps_left(gaps, source, file_name)
    loop = _endless_loop(tree)
    if loop is not None:
        return _endless(loop, source, file_name)
    if function not in _defined(tree):
        return _no_function(tree, file_name, function)
    return None


def _no_function(tree: ast.Module, file_name: str, function: str) -> str:
    if not tree.body:
        return f"{file_name} has no code. Write the function {function!r}, or start over with `tilesmith learn reset`."
    start = f"{file_name} defines no function {function!r}, but the check calls this function."
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node.name == function:
            return f"{start}\nOn line {node.lineno} it is an `async def`. Write `def`."
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return (
                f"{start}\nOn line {node.lineno} it stands inside a class, a function or an `if`. "
                "Move it to the start of the line."
            )
    return f"{start}\nRename your function back, or start over with `tilesmith learn reset`."


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


def _endless_loop(tree: ast.AST) -> ast.While | None:
    """Return the first `while` that nothing leaves, and that compares names which nothing in its body changes.

    In a kernel, also one whose condition is a constant: no exception leaves it.
    """
    kernels = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
    in_kernels = {id(part) for kernel in kernels for part in ast.walk(kernel)}
    shared = {name for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.While) or not isinstance(node.test, ast.Compare | ast.Constant):
            continue
        condition = list(ast.walk(node.test))
        body = [part for statement in node.body for part in ast.walk(statement)]
        if any(isinstance(part, ast.Call | ast.Attribute | ast.Subscript) for part in condition) or any(
            isinstance(part, ast.Break | ast.Return | ast.Raise | ast.Yield | ast.YieldFrom | ast.Await)
            for part in body
        ):
            continue
        compared = {part.id for part in condition if isinstance(part, ast.Name)}
        changed = {part.id for part in body if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        changed |= {  # a.append(1) and a[0] = 1 change a
            part.value.id
            for part in body
            if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.value, ast.Name)
        }
        is_always = isinstance(node.test, ast.Constant) and bool(node.test.value) and id(node) in in_kernels
        if is_always or (compared and not compared & (changed | shared)):
            return node
    return None


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any(re.search(r"\bjit\b", ast.unparse(one)) for one in function.decorator_list)


def _endless(loop: ast.While, source: str, file_name: str) -> str:
    start = (
        f"{file_name}:{loop.lineno} is a loop that never ends:\n    {source.splitlines()[loop.lineno - 1].strip()}\n"
    )
    names = sorted({part.id for part in ast.walk(loop.test) if isinstance(part, ast.Name)})
    if not names:
        return f"{start}Its condition is always true, and kernels have no `break`. Count the steps with `for`."
    missing = f"Is a line such as `{names[-1]} += BLOCK_SIZE` missing?"
    return f"{start}Nothing inside the loop changes {' or '.join(names)}. {missing}"


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
