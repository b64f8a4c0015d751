"""Copies of transformers' methods in which some names or statements are ours.

A method written from scratch would fit one release of transformers. A copy made from the installed source keeps that
release's caches, norms, arguments and results.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

from tilesmith.patch.report import UnknownCodeError


def names_in(method: Callable[..., Any]) -> set[str]:
    """Return the attributes and globals that the method uses."""
    return set(inspect.unwrap(method).__code__.co_names)


def rewritten(
    method: Callable[..., Any],
    names: Mapping[str, Any],
    changes: Mapping[str, str] | None = None,
    *,
    any_number: bool = False,
) -> Callable[..., Any]:
    """Return a copy of the method in which `names` mean ours and `changes` are made.

    `changes` maps regular expressions to replacements. They are applied in order to the source without comments, which
    has one statement per line. Each expression must match exactly once, or with `any_number` one of them at least
    once, else this raises UnknownCodeError.

    The copy has its own globals: replacing a global of the module would change every model in the process.
    """
    plain = inspect.unwrap(method)
    assert isinstance(plain, FunctionType)
    code = _changed_code(plain, changes, any_number) if changes else plain.__code__
    namespace = {**plain.__globals__, **names}
    del namespace["__name__"]  # torch.compile would look names up in the module of that name, not in this namespace
    copy = FunctionType(code, namespace, plain.__name__, plain.__defaults__, plain.__closure__)
    copy.__kwdefaults__ = plain.__kwdefaults__
    return functools.wraps(plain)(copy)


def matches(method: Callable[..., Any], pattern: str) -> bool:
    """Return whether the method's source, one statement a line, matches the regular expression anywhere."""
    plain = inspect.unwrap(method)
    assert isinstance(plain, FunctionType)
    return re.search(pattern, _plain_source(plain), flags=re.MULTILINE) is not None


def syntax_of(method: Callable[..., Any]) -> ast.FunctionDef:
    """Return the syntax tree of a method, without its decorators; UnknownCodeError where there is none."""
    plain = inspect.unwrap(method)
    assert isinstance(plain, FunctionType)
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(plain))).body
    except (OSError, SyntaxError) as error:
        raise UnknownCodeError(f"the source of {plain.__qualname__} is not available") from error
    if plain.__closure__ or not isinstance(function, ast.FunctionDef):
        raise UnknownCodeError.of(plain)
    function.decorator_list.clear()
    return function


def _plain_source(plain: FunctionType) -> str:
    """Return the source without comments and decorators, one statement a line."""
    # With this import Python does not evaluate the annotations.
    return "from __future__ import annotations\n" + ast.unparse(syntax_of(plain))


def _changed_code(plain: FunctionType, changes: Mapping[str, str], any_number: bool) -> CodeType:
    source, counts = _plain_source(plain), []
    for pattern, replacement in changes.items():
        source, found = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        counts.append(found)
    if not any(counts) if any_number else any(found != 1 for found in counts):
        raise UnknownCodeError.of(plain)
    file = f"<{plain.__module__}.{plain.__qualname__}, as patched by Tilesmith>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
    try:
        module = compile(source, file, "exec", dont_inherit=True)
    except SyntaxError as error:  # an `if` lost its only statement
        raise UnknownCodeError.of(plain) from error
    # The module holds one function, so its only code constant is that function.
    return next(one for one in module.co_consts if isinstance(one, CodeType))
