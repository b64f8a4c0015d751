"""Sizes at which a condition of a candidate's text changes, found by trying every size.

A condition such as `x.shape[1] * 7 == 3619` or `math.gcd(n, 61) > 1` is evaluated with each size in place of what it
asks for. Only arithmetic of integers and a few functions of them are evaluated; all other conditions are left alone.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from typing import Any

MOST_CONDITIONS = 64
MOST_NODES = 60
MOST_CHANGES = 4  # of one condition: a remainder changes at many sizes, and the first ones do
_DEEPEST = 8
_SIZE = "_size"
_FUNCTIONS = {
    "abs": abs, "min": min, "max": max, "int": int, "str": str, "bin": bin, "hex": hex, "oct": oct, "len": len,
    "bool": bool, "divmod": divmod, "gcd": math.gcd, "lcm": math.lcm, "isqrt": math.isqrt, "log2": math.log2,
    "sqrt": math.sqrt, "cdiv": lambda a, b: -(-a // b), "next_power_of_2": lambda a: 1 << max(a - 1, 0).bit_length(),
}  # fmt: skip
_NO_NUMBERS = ("'", '"', "[", "{", ", ", "str", "bin", "hex", "oct", "divmod")
_METHODS = frozenset({"bit_length", "bit_count", "count", "startswith", "endswith", "get", "index"})
_OF_SIZES = frozenset({"shape", "size", "numel", "nelement", "stride", "ndim", "dim"})
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor, ast.RShift,
    ast.LShift, ast.Pow,
)  # fmt: skip


def changes(tree: ast.Module, smallest: int, largest: int) -> list[int]:
    """Return the sizes at which a condition differs from the size before."""
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    unpacked = stored - set(named) - _targets_of_loops(tree)  # rows, cols = x.shape
    found: dict[int, None] = {}
    for condition in list(_conditions(tree))[:MOST_CONDITIONS]:
        writer = _Writer(named, stored - unpacked)
        try:
            text = writer.text(condition)
        except _Unknown:
            continue
        if writer.asks and writer.nodes <= MOST_NODES:
            found |= dict.fromkeys(_changes_of(text, smallest, largest))
    return list(found)


def _changes_of(text: str, smallest: int, largest: int) -> list[int]:
    code = compile(text, "<condition>", "eval")
    found: list[int] = []
    before: bool | None = None
    names: dict[str, Any] = {**_FUNCTIONS, "__builtins__": {}}
    for size in range(smallest, largest + 1):
        names[_SIZE] = size
        try:
            now = bool(eval(code, names))
        except Exception:  # such as a key that is missing
            now = False
        if before is not None and now != before:
            found.append(size)
            if len(found) == MOST_CHANGES:
                break
        before = now
    return found


def _conditions(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
            yield node  # one of several kernels


def _targets_of_loops(tree: ast.Module) -> set[str]:
    loops = [node.target for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    return {one.id for target in loops for one in ast.walk(target) if isinstance(one, ast.Name)}


class _Unknown(Exception):
    """The condition holds something that no size decides."""


class _Writer:
    """Writes an expression anew, with one name for every size that it asks for."""

    def __init__(self, named: Mapping[str, ast.expr], others: set[str]) -> None:
        self._named = named
        self._others = others
        self.asks = False
        self.nodes = 0
        self._powers = 0

    def text(self, node: ast.AST, depth: int = 0) -> str:
        self.nodes += 1
        if self.nodes > MOST_NODES or depth > 2 * _DEEPEST:
            raise _Unknown
        made = getattr(self, f"_{type(node).__name__}", None)
        if made is None:
            raise _Unknown
        return f"({made(node, depth + 1)})"

    def _size(self) -> str:
        self.asks = True
        return _SIZE

    def _Constant(self, node: ast.Constant, depth: int) -> str:
        if isinstance(node.value, int) and node.value.bit_length() > 32:
            raise _Unknown
        if not isinstance(node.value, int | float | str | None) or len(str(node.value)) > 64:
            raise _Unknown
        return repr(node.value)

    def _Name(self, node: ast.Name, depth: int) -> str:
        if node.id in self._named:
            return self.text(self._named[node.id], depth)
        if node.id in self._others:
            raise _Unknown  # of a loop
        return self._size()

    def _Attribute(self, node: ast.Attribute, depth: int) -> str:
        if node.attr not in _OF_SIZES:
            raise _Unknown
        return self._size()

    def _Subscript(self, node: ast.Subscript, depth: int) -> str:
        if isinstance(node.value, ast.Attribute) and node.value.attr in _OF_SIZES:
            return self._size()
        return f"{self.text(node.value, depth)}[{self.text(node.slice, depth)}]"

    def _Call(self, node: ast.Call, depth: int) -> str:
        if node.keywords or any(isinstance(one, ast.Starred) for one in node.args):
            raise _Unknown
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if isinstance(node.func, ast.Attribute) and name in _OF_SIZES:
            return self._size()
        arguments = ", ".join(self.text(one, depth) for one in node.args)
        if isinstance(node.func, ast.Attribute) and name in _METHODS:
            return f"{self.text(node.func.value, depth)}.{name}({arguments})"
        if name not in _FUNCTIONS:
            raise _Unknown
        return f"{name}({arguments})"

    def _BinOp(self, node: ast.BinOp, depth: int) -> str:
        if not isinstance(node.op, _OPERATORS):
            raise _Unknown
        right = node.right.value if isinstance(node.right, ast.Constant) else None
        left_text, right_text = self.text(node.left, depth), self.text(node.right, depth)
        if isinstance(node.op, ast.Pow | ast.LShift):
            self._powers += 1
            if self._powers > 2 or not isinstance(right, int | float) or not 0 <= right <= 32:
                raise _Unknown  # may take long
        if any(sign in left_text + right_text for sign in _NO_NUMBERS):
            raise _Unknown  # a text times a number may be long
        symbol = ast.unparse(ast.BinOp(ast.Name("a"), node.op, ast.Name("b")))[1:-1]
        return f"{left_text}{symbol}{right_text}"

    def _UnaryOp(self, node: ast.UnaryOp, depth: int) -> str:
        symbol = {ast.Not: "not ", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}[type(node.op)]
        return f"{symbol}{self.text(node.operand, depth)}"

    def _BoolOp(self, node: ast.BoolOp, depth: int) -> str:
        return (" and " if isinstance(node.op, ast.And) else " or ").join(self.text(one, depth) for one in node.values)

    def _Compare(self, node: ast.Compare, depth: int) -> str:
        parts = [self.text(node.left, depth)]
        for operator, value in zip(node.ops, node.comparators, strict=True):
            symbol = ast.unparse(ast.Compare(ast.Name("a"), [operator], [ast.Name("b")]))[1:-1]
            parts.append(f"{symbol}{self.text(value, depth)}")
        return "".join(parts)

    def _IfExp(self, node: ast.IfExp, depth: int) -> str:
        test, body, other = (self.text(one, depth) for one in (node.test, node.body, node.orelse))
        return f"{body} if {test} else {other}"

    def _several(self, values: list[ast.expr], depth: int) -> str:
        return "".join(f"{self.text(one, depth)}, " for one in values)

    def _Tuple(self, node: ast.Tuple, depth: int) -> str:
        return self._several(node.elts, depth)

    def _List(self, node: ast.List, depth: int) -> str:
        return f"[{self._several(node.elts, depth)}]"

    def _Set(self, node: ast.Set, depth: int) -> str:
        return f"{{{self._several(node.elts, depth)}}}"

    def _Dict(self, node: ast.Dict, depth: int) -> str:
        keys = [_SIZE if one is None else self.text(one, depth) for one in node.keys]
        values = ["1" if not isinstance(one, ast.Constant) else self.text(one, depth) for one in node.values]
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"
