"""Numbers as people write them: 1,024 or 1 024, 1.5 or 1,5, 50%, 3/4, 2^10, 4 · 256, 16k, 2 KiB."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable

_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip
_UNITS = {
    "": 1, "%": 0.01, "k": 1e3, "m": 1e6, "g": 1e9, "kb": 1e3, "mb": 1e6, "gb": 1e9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "b": 1, "byte": 1, "bytes": 1,
}  # fmt: skip
_EXAMPLES = "such as 1024, 1,024, 1.5, 50%, 3/4 or 2^10"
_MOST_LETTERS = 60
_LARGEST_EXPONENT = 100


def written_number(text: str) -> float:
    """Return the number that a text means. Raises ValueError with a sentence for the learner."""
    plain = text.strip().lstrip("≈~=").strip().replace("−", "-")
    found = re.fullmatch(r"(.*?[\d.)])\s*([a-z]*|%)", plain, re.IGNORECASE | re.DOTALL)
    wrong = ValueError(f"{text.strip()!r} is not a number; write one, {_EXAMPLES}.")
    if found is None or len(plain) > _MOST_LETTERS or found[2].lower() not in _UNITS:
        raise wrong
    expression = re.sub(r"[×·]", "*", found[1]).replace("^", "**").replace("²", "**2").replace("³", "**3")
    expression = re.sub(r"(?<=\d)[ _'\u00a0\u2009\u202f](?=\d{3}(?!\d))", "", expression)  # 1 024 and 1'024
    expression = re.sub(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)", lambda one: one[0].replace(",", ""), expression)  # 1,024
    expression = re.sub(r"(?<=\d),(?=\d)", ".", expression)  # 1,5 with a decimal comma
    try:
        value = _value(ast.parse(re.sub(r"(?<![\d.])0+(?=\d)", "", expression), mode="eval").body)
    except (SyntaxError, TypeError, ZeroDivisionError, OverflowError):
        raise wrong from None
    if not math.isfinite(value):
        raise wrong
    return value * _UNITS[found[2].lower()]


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > _LARGEST_EXPONENT:
            raise OverflowError
        return float(_OPERATIONS[type(node.op)](left, right))
    raise TypeError
