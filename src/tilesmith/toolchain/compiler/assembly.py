"""What PTX and AMD assembly have in common: instructions with their source lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN_WIDTH = 0

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.MULTILINE)
_LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?(?:.*\binlined_at\s+(\d+)\s+(\d+))?")


@dataclass(frozen=True)
class Access:
    """Instructions of one kind and width that access global memory, for one source line.

    `vector_bytes` is what one thread moves with one instruction, 0 where the instruction does not say. `count` is the
    number of such instructions in the binary. Line 0 is code without a source line, such as a library's. Columns
    distinguish accesses of one line; their origin differs between Triton's releases.
    """

    kind: str  # "load", "store" or "atomic"
    file: str
    line: int
    vector_bytes: int
    count: int
    column: int = 0


@dataclass(frozen=True)
class Facts:
    """Facts of a kernel from a vendor's binary; `Binary` explains the fields."""

    registers: int
    scalar_registers: int | None
    spill_bytes: int
    stack_bytes: int
    tensor_cores: bool
    async_copies: bool
    accesses: tuple[Access, ...]


class Instruction(NamedTuple):
    """One line of assembly and its place in the Python source."""

    file: str
    line: int
    column: int
    text: str
    caller: tuple[str, int] | None = None  # where the inlined function was called


def located_instructions(assembly: str) -> Iterator[Instruction]:
    """Yield every instruction with its source line; in an inlined function, the line in that function."""
    # LLVM lists files at the end of PTX and in the middle of AMD assembly, so they are read first.
    files = {number: f"{folder}/{name}" if name else folder for number, folder, name in _FILE.findall(assembly)}
    file, line, column, caller, in_inline_assembly = "", 0, 0, None, False
    for text in assembly.splitlines():
        location = _LOCATION.match(text)
        if location:
            # Triton 3.9 counts the lines of inline assembly as lines of the Python file.
            if not in_inline_assembly:
                file, line, column = files.get(location[1], ""), int(location[2]), int(location[3] or 0)
                caller = (files.get(location[4], ""), int(location[5])) if location[4] else None
        elif "begin inline asm" in text:
            in_inline_assembly = True
        elif "end inline asm" in text:
            in_inline_assembly = False
        else:
            yield Instruction(file, line, column, text, caller)


def tally(found: Iterable[tuple[str, Instruction, int]]) -> tuple[Access, ...]:
    """Return accesses in source order, from one (kind, instruction, bytes) for each instruction."""
    counts = Counter(
        (origin.file, origin.line, kind, vector_bytes, origin.column) for kind, origin, vector_bytes in found
    )
    return tuple(
        Access(kind, file, line, vector_bytes, count, column)
        for (file, line, kind, vector_bytes, column), count in sorted(counts.items())
    )
