"""Masks that lack brackets: Python evaluates `&` and `|` before comparisons, so `a < n & b < m` compares `n & b`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def first_missing_brackets(source: str) -> int | None:
    """Return the first line that compares `a & b` or `a | b` without brackets around it; None where no line does."""
    return min(
        (one.lineno for one in _combined_first(ast.parse(source)) if not _in_brackets(one, source)), default=None
    )


def _combined_first(tree: ast.AST) -> Iterator[ast.BinOp]:
    for node in ast.walk(tree):
        for side in (node.left, *node.comparators) if isinstance(node, ast.Compare) else ():
            if isinstance(side, ast.BinOp) and isinstance(side.op, ast.BitAnd | ast.BitOr):
                yield side


def _in_brackets(node: ast.BinOp, source: str) -> bool:
    lines = source.splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = "".join(lines[:first]).encode() + lines[first].encode()[: node.col_offset]
    after = lines[last].encode()[node.end_col_offset :] + "".join(lines[last + 1 :]).encode()
    return bool(re.search(rb"\(\s*$", before) and re.match(rb"\s*\)", after))
