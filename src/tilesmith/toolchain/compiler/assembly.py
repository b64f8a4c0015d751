"""What PTX and AMD assembly have in common: instructions that know the source line they came from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN_WIDTH = 0

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.MULTILINE)
_LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")


@dataclass(frozen=True)
class Access:
    """Instructions of one kind and width that touch global memory on behalf of one source line.

    `vector_bytes` is what one thread moves with one instruction (0: the instruction does not say), `count` how many
    such instructions the binary holds. Line 0 is code that belongs to no line, such as a library's.
    """

    kind: str  # "load", "store" or "atomic"
    file: str
    line: int
    vector_bytes: int
    count: int


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
    text: str


def located_instructions(assembly: str) -> Iterator[Instruction]:
    """Every line of code with its source line. Inside an inlined function that is the line in the function itself."""
    # LLVM lists PTX files at the end, AMD's in the middle: they are read before the first line that needs them.
    files = {number: f"{folder}/{name}" if name else folder for number, folder, name in _FILE.findall(assembly)}
    file, line, in_inline_assembly = "", 0, False
    for text in assembly.splitlines():
        location = _LOCATION.match(text)
        if location:
            # Triton 3.9 numbers the text lines of an inline block as if they were lines of the Python file.
            if not in_inline_assembly:
                file, line = files.get(location[1], ""), int(location[2])
        elif "begin inline asm" in text:
            in_inline_assembly = True
        elif "end inline asm" in text:
            in_inline_assembly = False
        else:
            yield Instruction(file, line, text)


def tally(found: Iterable[tuple[str, Instruction, int]]) -> tuple[Access, ...]:
    """Accesses in the order of the source, from one (kind, instruction, bytes) per instruction."""
    counts = Counter((origin.file, origin.line, kind, vector_bytes) for kind, origin, vector_bytes in found)
    return tuple(
        Access(kind, file, line, vector_bytes, count)
        for (file, line, kind, vector_bytes), count in sorted(counts.items())
    )
