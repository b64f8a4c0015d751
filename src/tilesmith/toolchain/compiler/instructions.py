"""PTX as a list of instructions with the registers that they read and write, and its loops."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tilesmith.toolchain.compiler.assembly import located_instructions

_INSTRUCTION = re.compile(r"^\s*(?:@!?(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);\s*$")
_LABEL = re.compile(r"^\s*(\$L__BB\w+):")
_REGISTER = re.compile(r"%\w+")
_WITHOUT_RESULT = ("st.", "red.", "bar", "bra", "ret", "cp.", "fence", "mbarrier", "stmatrix", "wgmma.")
_GLOBAL = ("ld.global", "st.global", "atom.", "red.", "cp.async.cg", "cp.async.ca", "cp.async.bulk.tensor")


@dataclass(frozen=True)
class Instruction:
    """One instruction. `place` is the name of its source file and the line."""

    place: tuple[str, int]
    name: str
    written: tuple[str, ...]
    read: tuple[str, ...]
    operands: str

    @property
    def is_global(self) -> bool:
        """Whether the instruction accesses global memory."""
        return self.name.startswith(_GLOBAL)


@dataclass(frozen=True)
class Loop:
    """The instructions from `first` to `last`, which repeat."""

    first: int
    last: int

    def holds(self, other: Loop) -> bool:
        return self != other and self.first <= other.first and other.last <= self.last


def parsed(ptx: str) -> tuple[list[Instruction], list[Loop]]:
    """Return the instructions of a kernel in order, and its loops: the targets of backward branches."""
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for one in located_instructions(ptx):
        label, match = _LABEL.match(one.text), _INSTRUCTION.match(one.text)
        if label:
            labels[label[1]] = len(found)
        elif match:
            predicate, name, operands = match.groups()
            written, read = _registers(name, operands)
            guard = (predicate,) if predicate else ()
            found.append(Instruction((Path(one.file).name, one.line), name, written, (*read, *guard), operands))
    ends: dict[int, int] = {}
    for number, instruction in enumerate(found):
        if instruction.name.startswith("bra"):
            first = labels.get(instruction.operands.strip(), number + 1)
            if first <= number:
                ends[first] = number
    return found, [Loop(first, last) for first, last in sorted(ends.items())]


def _registers(name: str, operands: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the registers that an instruction writes, and those that it reads."""
    if name.startswith(_WITHOUT_RESULT):
        return (), tuple(_REGISTER.findall(operands))
    results, _, rest = operands.partition("}" if operands.startswith("{") else ",")
    return tuple(_REGISTER.findall(results)), tuple(_REGISTER.findall(rest))
