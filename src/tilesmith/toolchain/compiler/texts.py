"""The texts of a compilation line by line, with their source lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tilesmith.toolchain.compiler.assembly import located_instructions
from tilesmith.toolchain.compiler.binary import Binary
from tilesmith.toolchain.compiler.layouts import positions

_BARRIER = {"ptx": re.compile(r"^\s*(?:bar|barrier)\.", re.MULTILINE), "amdgcn": re.compile(r"\bs_barrier\b")}
_SASS_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')


def barriers(binary: Binary) -> int:
    """Return the number of instructions that synchronise the threads of a block."""
    return sum(
        len(barrier.findall(binary.assembly[name])) for name, barrier in _BARRIER.items() if name in binary.assembly
    )


def by_source_line(binary: Binary, name: str) -> list[tuple[str, int, str]]:
    """Return each line of a text with its source file and source line; ("", 0) where it has none."""
    text = binary.assembly[name]
    if name in ("ptx", "amdgcn"):
        return [(found.file, found.line, found.text) for found in located_instructions(text)]
    if name == "sass":
        return list(_sass_lines(text))
    known = positions(text)
    return [(*known.get(number, ("", 0)), line) for number, line in enumerate(text.splitlines())]


def _sass_lines(text: str) -> Iterator[tuple[str, int, str]]:
    file, line = "", 0
    for each in text.splitlines():
        place = _SASS_LINE.match(each)
        if place is None:
            yield file, line, each
        elif "inlined at" not in each:
            file, line = str(Path(place[1])), int(place[2])
