"""What PTX and AMD assembly have in common: instructions that know the source line they came from."""

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
    """Instructions of one kind and width that touch global memory on behalf of one source line.

    `vector_bytes` is what one thread moves with one instruction (0: the instruction does not say), `count` how many
    such instructions the binary holds. Line 0 is code that belongs to no line, such as a library's. Columns tell two
    accesses of one line apart; what they count from differs between Triton's releases.
    """

    kind: str  # "load", "store" or "atomic"
    file: str
    line: int
    vector_bytes: int
    count: int
    column: int = 0


@dataclass(frozen=True)
class Facts:
    """What a vendor's binary says about a kernel; the fields are explained at `Binary`."""

    registers: int
    scalar_registers: int | None
    spill_bytes: int
    stack_bytes: int
    tensor_cores: bool
    async_copies: bool
    accesses: tuple[Access, ...]


class Instruction(NamedTuple):
    """One line of assembly, and where in the Python source it comes from."""

    file: str
    line: int
    column: int
    text: str
    caller: tuple[str, int] | None = None  # where the function that the line is in was called, if it was inlined


def located_instructions(assembly: str) -> Iterator[Instruction]:
    """Every line of code with its source line. Inside an inlined function that is the line in the function itself."""
    # LLVM lists PTX files at the end, AMD's in the middle: they are read before the first line that needs them.
    files = {number: f"{folder}/{name}" if name else folder for number, folder, name in _FILE.findall(assembly)}
    file, line, column, caller, in_inline_assembly = "", 0, 0, None, False
    for text in assembly.splitlines():
        location = _LOCATION.match(text)
        if location:
            # Triton 3.9 numbers the text lines of an inline block as if they were lines of the Python file.
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
    """Accesses in the order of the source, from one (kind, instruction, bytes) per instruction."""
    counts = Counter(
        (origin.file, origin.line, kind, vector_bytes, origin.column) for kind, origin, vector_bytes in found
    )
    return tuple(
        Access(kind, file, line, vector_bytes, count, column)
        for (file, line, kind, vector_bytes, column), count in sorted(counts.items())
    )
