"""Loops that never end: a `while` whose condition no longer changes.

The names that decide a condition are those in it, and those that their assignments in the loop read. Where none of them
reads memory, a round computes their values from those of the round before: once all are as they were, the loop never
ends. Where one reads memory, another program may end the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import triton.language as tl

from tilesmith.toolchain.interpreter.program import ProgramBuilder

PATIENCE = 512  # rounds of a loop before its values are compared
_LIBRARIES = ("tl", "triton", "libdevice", "math")
_NOT_PURE = ("load", "atomic", "gather", "inline_asm", "extern", "globaltimer", "clock")  # how names of calls begin
_PURE = ("abs", "float", "int", "max", "min", "range")
_PURE_METHODS = ("to", "cast", "sum", "max", "min", "abs", "reshape", "item")


class EndlessLoop(Exception):
    """The condition of a loop does not change any more."""


class Loop:
    """A `while` loop that runs."""

    def __init__(self, builder: ProgramBuilder, reads_memory: bool) -> None:
        self._builder = builder
        self._reads_memory = reads_memory
        self._rounds = 0
        self._before: Any = None  # the deciding values of an earlier round

    def __call__(self, condition: Any, deciding: Callable[[], tuple[Any, ...]]) -> bool:
        """Return whether the loop goes on. `deciding` returns the values that decide it."""
        goes_on = bool(condition)
        self._rounds += 1
        if self._reads_memory:
            before, self._before = self._before, _content_of(deciding)
            self._builder.idle_rounds += self._before == before
        elif goes_on and self._rounds > PATIENCE:
            now = _content_of(deciding)
            if now is not None and now == self._before:
                raise EndlessLoop("this loop never ends: nothing that decides its condition changes any more")
            if self._rounds & (self._rounds - 1) == 0 or self._before is None:
                self._before = now  # of rounds further and further apart, to meet a cycle of any length
        return goes_on


def _content_of(deciding: Callable[[], tuple[Any, ...]]) -> Any:
    """Return values in a form that compares equal for equal bits; None where the first round will make one of them."""
    try:
        return _content(deciding())
    except NameError:
        return None


def _content(value: Any) -> Any:
    if isinstance(value, tl.tensor):
        data = value.handle.data
        return str(value.dtype), data.shape, data.tobytes()
    if isinstance(value, tuple):
        return tuple(map(_content, value))
    return value if isinstance(value, int | float | str) else id(value)


def deciding_names(loop: ast.While) -> tuple[list[str], bool]:
    """Return the names that decide how long a loop runs, and whether memory or an unknown function decides too."""
    assigned = [node for node in ast.walk(loop) if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)]
    counted = [node for node in ast.walk(loop) if isinstance(node, ast.For)]
    nested = [node for node in ast.walk(loop) if isinstance(node, ast.If | ast.While | ast.For)]
    parts: list[ast.AST] = [loop.test]
    names = set(_names(loop.test))
    while True:
        found = [
            *(node for node in (*assigned, *counted) if names & set(_targets(node))),
            *(node for node in nested if any(names & set(_targets(each)) for each in ast.walk(node))),
        ]
        parts += [part for node in found for part in _read_by(node)]
        wider = names.union(*(_names(part) for part in parts))
        if wider == names:
            break
        names = wider
    reads_memory = any(not _is_pure(node) for part in parts for node in ast.walk(part))
    return sorted(names), reads_memory


def _names(node: ast.AST) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _targets(node: ast.AST) -> Iterator[str]:
    """Return the names that a statement assigns to."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _names(target)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
        yield from _names(node.target)


def _read_by(node: ast.AST) -> Iterator[ast.AST]:
    """Return the expressions that decide what a statement assigns, or whether it runs."""
    if isinstance(node, ast.If | ast.While):
        yield node.test
    elif isinstance(node, ast.For):
        yield from (node.target, node.iter)
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        yield node


def _is_pure(node: ast.AST) -> bool:
    if isinstance(node, ast.NamedExpr):
        return False
    if not isinstance(node, ast.Call):
        return True
    called = node.func
    if isinstance(called, ast.Name):
        return called.id in _PURE
    if not isinstance(called, ast.Attribute) or called.attr.startswith(_NOT_PURE):
        return False
    owner: ast.AST = called
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    in_library = isinstance(owner, ast.Name) and owner.id in _LIBRARIES
    return in_library or called.attr in _PURE_METHODS
