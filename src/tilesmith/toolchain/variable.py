"""A variable of a kernel as plain data: read it without PyTorch, Triton or numpy."""

from __future__ import annotations

from dataclasses import dataclass

UNDEFINED = "?"


@dataclass(frozen=True)
class Variable:
    """One variable after a step.

    - `memory`: "registers", "shared" or "constant".
    - `rows`: the first elements as text; UNDEFINED for lanes without a value. Of a pointer: offsets in elements.
    - `summary`: all elements in a few words.
    """

    name: str
    memory: str
    shape: tuple[int, ...]
    format: str
    bits: int  # of one element
    rows: tuple[tuple[str, ...], ...]
    summary: str
