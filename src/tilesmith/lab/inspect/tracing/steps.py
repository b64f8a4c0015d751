"""The steps of one program: its statements in order, and the statement after which each variable is dead."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tilesmith.lab.inspect.model import ProgramStep
from tilesmith.toolchain.interpreter import Access, Step

MOST_STEPS = 240
MOST_VARIABLES = 24  # that one statement changes


class StepLog:
    """Collects the steps of one program."""

    def __init__(self) -> None:
        self.count = 0
        self._steps: list[ProgramStep] = []
        self._gone: list[tuple[str, ...]] = []
        self._accesses: list[tuple[str, str, int, int]] = []

    def access(self, access: Access, argument: str | None) -> None:
        """Note an access of the statement that runs."""
        active = int(np.count_nonzero(access.mask))
        self._accesses.append((access.kind, argument or "?", active, access.mask.size))

    def step(self, step: Step) -> bool:
        """Note a step. Return whether the next one is kept too."""
        self.count += 1
        accesses, self._accesses = tuple(self._accesses), []
        if len(self._steps) < MOST_STEPS:
            changed = step.changed[:MOST_VARIABLES]
            self._steps.append(
                ProgramStep(step.function, step.file, step.line, _code(step), changed, accesses, raised=step.raised)
            )
            self._gone.append(step.gone)
        return len(self._steps) < MOST_STEPS

    def finished(self) -> tuple[ProgramStep, ...]:
        """Return the kept steps, each with the variables that no later step reads.

        Where steps were left out, all variables are alive at the last kept step.
        """
        kernel = self._steps[-1].function if self._steps else ""
        alive = {_base(one.name) for step in self._steps for one in step.changed} if self.count > MOST_STEPS else set()
        found: list[ProgramStep] = []
        reads_later: list[set[str]] = []
        for step in reversed(self._steps):
            reads_later.append(set(alive))
            prefix = "" if step.function == kernel else f"{step.function}."
            alive -= {_base(one.name) for one in step.changed}
            alive |= {prefix + name for name in _reads(step.file).get(step.line, ())}
        known: set[str] = set()
        for step, gone, later in zip(self._steps, self._gone, reversed(reads_later), strict=True):
            known |= {one.name for one in step.changed}
            dead = {name for name in known if _base(name) not in later} | (known & set(gone))
            known -= dead
            found.append(replace(step, dead=tuple(sorted(dead))))
        return tuple(found)


def _code(step: Step) -> str:
    lines = (linecache.getline(step.file, line).strip() for line in range(step.line, step.last_line + 1))
    return " ".join(lines)


def _base(name: str) -> str:
    return name.partition("[")[0]


@lru_cache(maxsize=64)
def _reads(file: str) -> dict[int, frozenset[str]]:
    """Return the names that the statement at each line reads; of a compound statement, its header."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    return {
        node.lineno: frozenset(_names(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef)
    }


def _names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    waiting: list[ast.AST] = [statement]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.stmt):
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                yield child.id
            waiting.append(child)
