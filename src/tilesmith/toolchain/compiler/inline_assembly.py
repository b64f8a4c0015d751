"""Errors in inline assembly, which only the assembler reads.

ptxas names a line of the PTX, which Triton leaves behind as a file. For a constraint that the target lacks, LLVM prints
an error and Triton goes on without the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triton import knobs

from tilesmith.toolchain.compiler.assembly import located_instructions
from tilesmith.toolchain.compiler.layouts import positions

_OPERATION = "tt.elementwise_inline_asm"
_WRITTEN = re.compile(r"begin inline asm|;#ASMSTART")
_PTXAS = re.compile(r"^\S*ptxas\S* (\S+\.ptx), line (\d+); (?:error|fatal)\s*: (.+)$", re.MULTILINE)

Place = tuple[str, int]


def has_inline_assembly(ir_text: str) -> bool:
    """Return whether a kernel's TTIR has inline assembly of the user."""
    return _OPERATION in ir_text


def left_out(texts: Mapping[str, Any], diagnosed: Callable[[], str]) -> list[str]:
    """Return LLVM's errors if a compilation with these texts lacks some inline assembly.

    `diagnosed` compiles once more and returns what LLVM prints.
    """
    assembly = texts.get("ptx") or texts.get("amdgcn") or ""
    if not has_inline_assembly(texts.get("ttir", "")):
        return []
    if len(_WRITTEN.findall(assembly)) >= texts["llir"].count(" asm "):
        return []
    return list(dict.fromkeys(line.strip() for line in diagnosed().splitlines() if "error:" in line))


def compiled_anew(compiling: Callable[[], Any]) -> Any:
    """Compile without Triton's cache."""
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        return compiling()


def ptxas_reasons(message: str) -> list[str]:
    """Return the reasons in Triton's report of a failure of ptxas, each once."""
    return list(dict.fromkeys(f"error: {found[3]}" for found in _PTXAS.finditer(message)))


def rejected_place(message: str, ir_text: str) -> Place | None:
    """Return file and line of the inline assembly that a compiler's message is about; None where it is not known."""
    found = _PTXAS.search(message)
    if found is not None:
        return _place_in_ptx(Path(found[1]), int(found[2]))
    places = positions(ir_text)
    blocks = [(places.get(number), line) for number, line in enumerate(ir_text.splitlines()) if _OPERATION in line]
    constraint = re.search(r"constraint '([^']+)'", message)
    wanted = {place for place, line in blocks if constraint is None or constraint[1] in _constraints(line)}
    return wanted.pop() if len(wanted) == 1 else None


def _constraints(line: str) -> str:
    found = re.search(r'constraints = "([^"]*)"', line)
    return found[1] if found else ""


def _place_in_ptx(file: Path, number: int) -> Place | None:
    """Return the source of a line of PTX, and remove the file that Triton leaves behind."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        file.unlink()
    except OSError:
        return None
    files = [line for line in lines if line.lstrip().startswith(".file")]
    # An error at the end of an instruction is reported at the next line that is none.
    *_, last = located_instructions("\n".join([*files, *lines[:number]]))
    return (last.file, last.line) if last.line else None
