"""Values at which a kernel may do something else: the numbers of a candidate's text, put into its inputs."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import torch
from torch import Tensor

from tilesmith.lab.judge.candidate import UNREADABLE, Candidate, parsed

MOST_NUMBERS = 12
SMALLEST, LARGEST = 1e-30, 1e4  # squares of these stay numbers
_CLOSE = 1 / 64
_IN_CUDA = re.compile(r"(?<![\w.])(\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)f?\b|[<>=!]=?\s*(\d+)\b")
_FOLDED = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.Div: "__truediv__"}


def values_of(candidate: Candidate) -> list[float]:
    """Return the numbers of a candidate's text, values beside each, and one between any two neighbours."""
    numbers = {abs(one) for one in _numbers(candidate) if SMALLEST <= abs(one) <= LARGEST and abs(one) != 1}
    chosen = sorted(numbers)[:MOST_NUMBERS]
    between = [math.sqrt(one * two) for one, two in pairwise(chosen)]
    between += [(one + two) / 2 for one, two in pairwise(chosen)]
    beside = [one * factor for one in chosen for factor in (1.0, 1 + _CLOSE, 1 - _CLOSE, 0.5)]
    return [sign * one for one in dict.fromkeys([*between, *beside]) for sign in (1.0, -1.0)]


def plant(value: Tensor, values: Sequence[float], generator: torch.Generator) -> None:
    """Put values into an eighth of the elements, one value for each row, so that it may be the row's largest."""
    if value.dim() and value.numel() and 0 not in value.stride():
        planted = torch.tensor(values, dtype=torch.float64).clamp(*_limits(value.dtype))
        rows = value.shape[:-1] if value.dim() > 1 else value.shape
        chosen = planted[torch.arange(math.prod(rows)) % len(values)].reshape(rows)
        chosen = chosen[..., None] if value.dim() > 1 else chosen
        is_planted = torch.rand(value.shape, generator=generator) < 1 / 8
        column = torch.randint(value.size(-1), (*value.shape[:-1], 1), generator=generator)
        is_planted |= torch.arange(value.size(-1)) == column
        value.copy_(torch.where(is_planted, chosen.to(value.dtype), value))


def _limits(dtype: torch.dtype) -> tuple[float, float]:
    return torch.finfo(dtype).min, torch.finfo(dtype).max


def _numbers(candidate: Candidate) -> Iterator[float]:
    for name, content in candidate.files.items():
        if name.endswith((".cu", ".cuh", ".cpp", ".h")):
            yield from _of_cuda(content.decode(errors="replace"))
        elif name.endswith(".py"):
            with suppress(*UNREADABLE):
                yield from _of_python(parsed(content))


def _of_python(tree: ast.Module) -> Iterator[float]:
    """Yield floating-point numbers, and the integers that kernels compare with."""
    kernels = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.decorator_list]
    compared = [side for kernel in kernels for node in ast.walk(kernel) if isinstance(node, ast.Compare)
                for side in (node.left, *node.comparators)]  # fmt: skip
    for node in [*compared, *ast.walk(tree)]:
        value = _folded(node)
        if isinstance(value, float) or (value is not None and node in compared):
            yield float(value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            yield from _of_cuda(node.value)


def _of_cuda(text: str) -> Iterator[float]:
    for one in _IN_CUDA.finditer(text):
        yield float(one.group(1) or one.group(2))


def _folded(node: ast.AST, depth: int = 0) -> float | int | None:
    """Return the value of an expression of numbers; None for everything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]  # a number
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and depth < 8:
        value = _folded(node.operand, depth + 1)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _FOLDED and depth < 8:
        left, right = _folded(node.left, depth + 1), _folded(node.right, depth + 1)
        if left is not None and right is not None:
            with suppress(ZeroDivisionError, OverflowError):
                return float(getattr(float(left), _FOLDED[type(node.op)])(float(right)))
    return None
