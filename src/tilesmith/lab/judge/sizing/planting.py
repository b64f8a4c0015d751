"""Values at which a kernel may do something else: the numbers of a candidate's text, put into its inputs."""

from __future__ import annotations

import ast
import math
import random
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, product

import torch
from torch import Tensor

from tilesmith.lab.judge.candidate import UNREADABLE, Candidate, parsed

MOST_NUMBERS = 12
MOST_PATTERNS, BASES = 256, 4  # values with bits that a kernel asks for, and how many of each
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


def bit_patterns_of(candidate: Candidate) -> list[float]:
    """Return float32 numbers whose bits are what a kernel asks for: `bits >> 3 & 0xFFFF == 0xBEEF`, or a remainder."""
    chance = random.Random(candidate.digest)
    found = [
        _with_bits(chance.uniform(0.5, 2.0), wanted, mask, shift, remainder)
        for wanted, mask, shift, remainder in _asked_bits(candidate)
        for _ in range(BASES)
    ]
    return [sign * one for one in found if SMALLEST <= abs(one) <= LARGEST for sign in (1.0, -1.0)][:MOST_PATTERNS]


def _with_bits(value: float, wanted: int, mask: int, shift: int, remainder: bool) -> float:
    (bits,) = struct.unpack("I", struct.pack("f", value))
    part = bits >> shift
    part = part - part % mask + wanted if remainder else part & ~mask | wanted
    changed = part << shift | bits & (1 << shift) - 1
    (made,) = struct.unpack("f", struct.pack("I", changed & 0xFFFFFFFF))
    return float(made)


def _asked_bits(candidate: Candidate) -> Iterator[tuple[int, int, int, bool]]:
    """Yield numbers that kernels compare with, with each mask or divisor and each shift of the same kernel."""
    for kernel in _kernels(candidate):
        found: dict[type, set[int]] = {ast.BitAnd: set(), ast.Mod: set(), ast.RShift: {0}, ast.Compare: set()}
        for node in ast.walk(kernel):
            if isinstance(node, ast.BinOp) and type(node.op) in found:
                found[type(node.op)] |= _whole([node.left, node.right])
            elif isinstance(node, ast.Compare):
                found[ast.Compare] |= _whole([node.left, *node.comparators])
        for operator in (ast.BitAnd, ast.Mod):
            for wanted, mask, shift in product(found[ast.Compare], found[operator] - {0}, found[ast.RShift]):
                if 0 <= wanted <= mask and shift < 32:
                    yield wanted, mask, shift, operator is ast.Mod


def _whole(nodes: Sequence[ast.AST]) -> set[int]:
    values = (_folded(one) for one in nodes)
    return {one for one in values if isinstance(one, int) and 0 <= one < 1 << 32}


def _kernels(candidate: Candidate) -> Iterator[ast.FunctionDef]:
    for name, content in candidate.files.items():
        if name.endswith(".py"):
            with suppress(*UNREADABLE):
                tree = parsed(content)
                yield from (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.decorator_list)


def plant(value: Tensor, values: Sequence[float], generator: torch.Generator) -> None:
    """Put values into an eighth of the elements, one value for each row, so that it may be the row's largest.

    More values than rows are bit patterns: then each of half of the elements gets another value.
    """
    if value.dim() and value.numel() and 0 not in value.stride():
        planted = torch.tensor(values, dtype=torch.float64).clamp(*_limits(value.dtype))
        rows = value.shape[:-1] if value.dim() > 1 else value.shape
        if len(values) > math.prod(rows):
            scattered = planted[torch.arange(value.numel()) % len(values)].reshape(value.shape).to(value.dtype)
            value.copy_(torch.where(torch.rand(value.shape, generator=generator) < 1 / 2, scattered, value))
            return
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
