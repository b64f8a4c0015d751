"""Sizes at which a candidate's text may branch: integers that it compares something with, or divides by."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any

from tilesmith.lab.judge.candidate import UNREADABLE, Candidate

SMALLEST, LARGEST = 2, 8192
MOST_THRESHOLDS = 12
_FOLDED: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.LShift: lambda a, b: a << min(max(b, 0), 32), ast.Pow: lambda a, b: a ** min(max(b, 0), 32),
}  # fmt: skip


def thresholds(candidate: Candidate) -> list[int]:
    """Return the sizes to try: each integer in a condition, a remainder or a `match`, and its successor."""
    found: dict[int, None] = {}
    for name, content in candidate.files.items():
        if name.endswith(".py"):
            try:
                tree = ast.parse(content)
            except UNREADABLE:
                continue
            found |= dict.fromkeys(_compared(tree))
    sizes = sorted(found, key=lambda one: (one & (one - 1) == 0, one))[:MOST_THRESHOLDS]  # odd-looking ones first
    return [size for one in sizes for size in (one, one + 1)]


def _compared(tree: ast.Module) -> Iterator[int]:
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        parts: list[Any] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            parts = [node.right]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("min", "max", "minimum"):
            parts = list(node.args)
        for part in parts:
            for each in part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]:
                value = _folded(each, named, 0)
                if value is not None and SMALLEST <= value <= LARGEST:
                    yield value


def _folded(node: ast.AST, named: dict[str, ast.expr], depth: int) -> int | None:
    """Return the value of an expression of integers and names of integers; None for everything else."""
    if depth > 8:
        return None
    if isinstance(node, ast.Constant):
        value = node.value
        return value if type(value) is int and value.bit_length() <= 32 else None
    if isinstance(node, ast.Name) and node.id in named:
        return _folded(named[node.id], named, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _FOLDED:
        left, right = _folded(node.left, named, depth + 1), _folded(node.right, named, depth + 1)
        if left is not None and right is not None and left.bit_length() <= 32:
            value = _FOLDED[type(node.op)](left, right)
            return value if value.bit_length() <= 32 else None
    return None
