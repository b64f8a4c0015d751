"""The state of the program that runs, as the parts of the interpreter share it."""

from __future__ import annotations

from typing import Any

from triton.runtime.interpreter import InterpreterBuilder

from tilesmith.toolchain.interpreter.memory import Memory
from tilesmith.toolchain.interpreter.observing.observers import Program


class ProgramBuilder(InterpreterBuilder):  # type: ignore[misc]  # Triton ships no types
    """Performs the operations of one program at a time. `patches.Builder` has the operations.

    - `recorder`: records each operation, while an observer follows the program.
    - `path`: records how addresses follow from the program's ids, for all programs of a launch.
    - `idle_rounds`: of `while` loops that memory decides, so far: the deciding values were those of the round before.
    - `most_polls`: of one scalar that does not change, each in an idle round, with no other access. More is a wait.
    """

    memory: Memory
    grid_idx: Program
    operation_names: tuple[str, ...]
    recorder: Any = None
    path: Any = None
    idle_rounds: int = 0
    most_polls: int = 1_000
