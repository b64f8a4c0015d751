"""Long loops of a script that only repeat launches end early.

A script that measures itself may call its function ten thousand times. A round that launches kernels seen before, of
which nobody can read the results, and computes nothing else, changes nothing: after some of them the loop ends.
"""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

LONG_LOOP = 1000
ROUNDS = 50  # in a row that change nothing
_NAME = "__rounds_of_tilesmith__"

State = tuple[int, object]


def run_file(script: str, state: Callable[[], State], note: Callable[[str], None]) -> dict[str, Any]:
    """Run a file as `python` would, with loops over a long `range` that end early; return its names.

    `state()` returns how many results were put off, and whatever else changes when a round computes something.
    """

    def rounds(numbers: Iterable[int]) -> Iterable[int]:
        is_long = isinstance(numbers, range) and len(numbers) >= LONG_LOOP
        return _until_quiet(numbers, state, note) if is_long else numbers  # type: ignore[arg-type]  # a range

    def compiled(text: Any, file: str, mode: str) -> Any:
        return compile(ast.fix_missing_locations(_Loops().visit(ast.parse(text, file))), file, mode)

    with patch.object(runpy, "compile", compiled, create=True):
        return runpy.run_path(script, {_NAME: rounds}, run_name="__main__")


def _until_quiet(numbers: range, state: Callable[[], State], note: Callable[[str], None]) -> Iterator[int]:
    quiet, before = 0, state()
    for count, number in enumerate(numbers):
        now = state()
        quiet = quiet + 1 if now[0] > before[0] and now[1] == before[1] else 0
        if quiet >= ROUNDS:
            note(f"a loop of {len(numbers):,} rounds ended after {count}: nobody reads what its launches compute")
            return
        before = now
        yield number


class _Loops(ast.NodeTransformer):
    """Lets `for … in range(…)` ask for each round, except in kernels, whose source Triton reads."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        is_kernel = any("jit" in ast.unparse(one) for one in node.decorator_list)
        return node if is_kernel else self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        called = node.iter
        if isinstance(called, ast.Call) and isinstance(called.func, ast.Name) and called.func.id == "range":
            node.iter = ast.copy_location(ast.Call(ast.Name(_NAME, ast.Load()), [called], []), called)
        return self.generic_visit(node)
