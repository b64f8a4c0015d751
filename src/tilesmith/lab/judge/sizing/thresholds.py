"""Sizes at which a candidate may do something else: integers in conditions of its text, and sizes of its blocks."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilesmith.lab.judge.candidate import UNREADABLE, Candidate, parsed
from tilesmith.lab.judge.sizing.conditions import changes
from tilesmith.lab.judge.sizing.planting import bit_patterns_of, values_of

SMALLEST, LARGEST = 2, 8192
MOST_THRESHOLDS = 12
LARGEST_TOGETHER = 160
_IN_CUDA = re.compile(r"(?:[<>]=?|[!=]=|%)\s*(\d+)\b")
_FOLDED: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.LShift: lambda a, b: a << min(max(b, 0), 32), ast.Pow: lambda a, b: a ** min(max(b, 0), 32),
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Sizes to try: at thresholds of the text, as the number of all elements, and one larger than a block."""

    thresholds: list[int]
    elements: list[int]
    beyond_blocks: list[int]
    together: list[int]  # for all sizes at once
    values: list[float]  # of inputs
    bit_patterns: list[float]  # likewise


def sizes_of(candidate: Candidate) -> Sizes:
    """Return the sizes at which a candidate's text may do something else.

    Thresholds are each integer in a condition, a remainder or a `match`, and its successor; then sizes at which a
    condition changes, where none of these integers shows them.
    """
    trees = list(_trees(candidate))
    found = {one for tree in trees for one in _integers(tree, _compared)} | set(_in_cuda(candidate, trees))
    sizes = sorted(found, key=lambda one: (one & (one - 1) == 0, one))[:MOST_THRESHOLDS]  # odd-looking ones first
    shown = [size for one in sizes for size in (one, one + 1)]
    changing = [one for tree in trees for one in changes(tree, 1, LARGEST)]
    hidden = [one for one in dict.fromkeys(changing) if one not in shown][:MOST_THRESHOLDS]
    counts_elements = any(b"numel" in one or b"nelement" in one for one in candidate.files.values())
    blocks = {one for tree in trees for one in _integers(tree, _blocks)}
    beyond = [one + 1 for one in sorted(blocks, reverse=True)[:MOST_THRESHOLDS]]
    moduli = {one for tree in trees for one in _integers(tree, _moduli) if one & (one - 1)}
    together = [lcm for lcm in [math.lcm(*moduli)] if moduli and lcm <= LARGEST_TOGETHER]
    elements = changing[:MOST_THRESHOLDS] if counts_elements else []
    return Sizes([*shown, *hidden], elements, beyond, together, values_of(candidate), bit_patterns_of(candidate))


def _trees(candidate: Candidate) -> Iterator[ast.Module]:
    for name, content in candidate.files.items():
        if name.endswith(".py"):
            with suppress(*UNREADABLE):
                yield parsed(content)


def _in_cuda(candidate: Candidate, trees: Sequence[ast.Module]) -> Iterator[int]:
    """Yield the integers that CUDA sources compare with, in files or in texts of Python."""
    texts = [one.decode(errors="replace") for name, one in candidate.files.items() if name.endswith((".cu", ".cuh"))]
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts += [one.value for one in nodes if isinstance(one.value, str) and "__global__" in one.value]
    for text in texts:
        yield from (int(one) for one in _IN_CUDA.findall(text) if SMALLEST <= int(one) <= LARGEST)


def _integers(tree: ast.Module, parts: Callable[[ast.AST], list[Any]]) -> Iterator[int]:
    """Yield the integers in these parts of the tree."""
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        for part in parts(node):
            for each in part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]:
                value = _folded(each, named, 0)
                if value is not None and SMALLEST <= value <= LARGEST:
                    yield value


def _moduli(node: ast.AST) -> list[Any]:
    """Return what a node divides by for a remainder."""
    return [node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) else []


def _compared(node: ast.AST) -> list[Any]:
    """Return what a node compares, divides by for a remainder, or limits."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return [node.right]
    if isinstance(node, ast.MatchValue):
        return [node.value]
    return list(node.args) if isinstance(node, ast.Call) and _name(node) in ("min", "max", "minimum") else []


def _blocks(node: ast.AST) -> list[Any]:
    """Return the constants of a configuration, and the arguments of a call whose names are in capitals."""
    if not isinstance(node, ast.Call):
        return []
    given = [
        value for one in node.args if _name(node) == "Config" and isinstance(one, ast.Dict) for value in one.values
    ]
    return given + [one.value for one in node.keywords if one.arg is not None and one.arg.isupper()]


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


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
