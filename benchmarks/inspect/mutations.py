"""Faults that code plants in other people's kernels: each mutation edits one statement and keeps all line numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One planted fault: its class, the file, the lines of the edited statement, and the file's new text."""

    kind: str
    file: str
    first_line: int
    last_line: int
    expected: tuple[str, ...]  # kinds of findings that name it
    text: str
    anywhere: bool = False  # in which line a finding appears follows from the program, not from the edit


@dataclass(frozen=True)
class Seen:
    """What a clean run shows of one kernel: its file, its lines, and the accesses whose masks matter."""

    file: str
    first_line: int
    last_line: int
    accesses: dict[int, dict[str, Any]]  # by line


def faults_of(seen: Seen) -> Iterator[Fault]:
    """Yield the faults that can be planted in one kernel, at most one of a kind at a line."""
    source = Path(seen.file).read_text()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if seen.first_line <= line <= seen.last_line:
            yield from _in_kernel(node, source, seen)


def faults_of_host(file: str) -> Iterator[Fault]:
    """Yield the faults that can be planted in the Python code that launches kernels."""
    source = Path(file).read_text()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in ("torch.zeros", "torch.zeros_like"):
            yield _fault(
                "empty instead of zeros",
                ("uninitialised",),
                file,
                source,
                node.func,
                name.replace("zeros", "empty"),
                True,
            )
        if name in ("triton.cdiv", "cdiv") and len(node.args) == 2:
            one, other = map(ast.unparse, node.args)
            yield _fault("floored grid", ("uninitialised", "race"), file, source, node, f"(({one}) // ({other}))", True)


def _in_kernel(node: ast.AST, source: str, seen: Seen) -> Iterator[Fault]:
    if not isinstance(node, ast.Call):
        return
    file, name = seen.file, ast.unparse(node.func)
    masked = any(
        seen.accesses.get(line, {}).get("masked_fraction", 0) > 0
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )
    mask = _argument(node, "mask", 1 if name == "tl.load" else 2)
    other = _argument(node, "other", 2)
    outside = ("out-of-bounds", "race", "uninitialised", "undefined")
    if name in ("tl.load", "tl.store", "tl.atomic_add") and mask is not None and masked:
        kind = {"tl.load": "load without mask", "tl.store": "store without mask"}.get(name, "atomic without mask")
        yield _fault(kind, outside, file, source, mask, "True", whole=node)
        yield _fault(
            f"mask one too wide at a {name[3:]}",
            outside,
            file,
            source,
            mask,
            f"(({_text(source, mask)}) | True)",
            whole=node,
        )
    if name == "tl.load" and other is not None and masked and not _is_zero(other):
        yield _fault("load without other", ("undefined",), file, source, other, "None", whole=node)
    if name in ("tl.load", "tl.store") and node.args and node.lineno in seen.accesses:
        pointer = node.args[0]
        moved = f"({_text(source, pointer)}) + 1"
        yield _fault(f"{name[3:]} one element too far", outside, file, source, pointer, moved, whole=node)
    if name == "tl.program_id":
        call = _text(source, node)
        yield _fault("two programs, one tile", ("race", "uninitialised"), file, source, node, f"({call} // 2)", True)
        yield _fault("int32 overflow", ("overflow",), file, source, node, f"({call} * 1073741824 * 4)", True)
    if name == "tl.arange" and len(node.args) == 2:
        call = _text(source, node)
        yield _fault("false multiple_of", ("false-hint",), file, source, node, f"(tl.multiple_of({call} + 1, 16) - 1)")
    if name == "tl.exp":
        inner = _text(source, node.args[0])
        yield _fault("exp overflows", ("not-finite",), file, source, node.args[0], f"({inner}) * 0 + 1e4", whole=node)
    if name == "tl.zeros" and "tl.float32" in _text(source, node):
        half = _text(source, node).replace("tl.float32", "tl.float16")
        yield _fault(
            "accumulator in half precision",
            ("low-precision", "compile-error", "not-finite"),
            file,
            source,
            node,
            half,
            True,
        )
    if name == "tl.sum" and node.args:
        inner = _text(source, node.args[0])
        yield _fault(
            "sum in half precision",
            ("low-precision",),
            file,
            source,
            node.args[0],
            f"({inner}).to(tl.float16)",
            whole=node,
        )
    if name == "tl.debug_barrier":
        yield _fault("no barrier", ("race",), file, source, node, "None", True)
    if name == "tl.dot":
        precise = [one for one in node.keywords if one.arg in ("allow_tf32", "input_precision")]
        if precise:
            value = '"tf32"' if precise[0].arg == "input_precision" else "True"
            yield _fault("dot in tf32", ("low-precision",), file, source, precise[0].value, value, whole=node)


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if len(call.args) > position else None


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _text(source: str, node: ast.AST) -> str:
    return ast.get_source_segment(source, node) or ast.unparse(node)


def _fault(
    kind: str, expected: tuple[str, ...], file: str, source: str, node: ast.AST, replacement: str,
    anywhere: bool = False, whole: ast.AST | None = None,
) -> Fault:  # fmt: skip
    """Return the fault of replacing one expression; newlines inside it stay, so that lines keep their numbers."""
    lines = source.splitlines(keepends=True)
    start = sum(len(line.encode()) for line in lines[: node.lineno - 1]) + node.col_offset  # type: ignore[attr-defined]
    end = sum(len(line.encode()) for line in lines[: node.end_lineno - 1]) + node.end_col_offset  # type: ignore[attr-defined]
    raw = source.encode()
    one_line = re.sub(r"#[^\n]*", "", replacement).replace("\n", " ")
    newlines = b"\n" * raw[start:end].count(b"\n")
    statement: Any = whole or node
    text = (raw[:start] + one_line.encode() + newlines + raw[end:]).decode()
    return Fault(kind, file, statement.lineno, statement.end_lineno, expected, text, anywhere)
