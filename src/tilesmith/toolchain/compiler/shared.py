"""Bank conflicts of a kernel's shared-memory instructions.

The compiler swizzles shared memory, and reports nowhere how. But the PTX computes each address from the thread's
number. This module repeats that computation for the 32 threads of a warp: one pass over the text, each branch taken
once. An address that depends on loaded data is unknown, and its instruction is not counted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton
from numpy.typing import NDArray

from tilesmith.toolchain.compiler.assembly import Instruction, located_instructions
from tilesmith.toolchain.compiler.binary import Binary

BANKS = 32
BANK_BYTES = 4
LANES = 32
_WAVEFRONT_BYTES = BANKS * BANK_BYTES
_LIBRARY = str(Path(triton.__file__).parent)

Lanes = NDArray[np.int64]

_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(.*?);")
_ADDRESS = re.compile(r"\[\s*(%?\w+)\s*(?:\+\s*(-?\w+))?\s*\]")
_VECTOR = re.compile(r"\.v(\d)")
_BITS = re.compile(r"\.(?:b|u|s|f|bf)(\d+)(x2)?$")
_MATRIX = re.compile(r"\.x([124])")

_ARITHMETIC: dict[str, Callable[..., Lanes]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << np.minimum(b, 63),
    "shr": lambda a, b: a >> np.minimum(b, 63),
    "bfe": lambda a, start, length: (a >> start) & ((1 << length) - 1),
    "bfe.s32": lambda a, start, length: (a << (64 - length - start)) >> (64 - length),
    "bfi": lambda field, a, start, length: (
        (a & ~(((1 << length) - 1) << start)) | ((field & ((1 << length) - 1)) << start)
    ),
    "rem": lambda a, b: a % b,
    "div": lambda a, b: a // b,
    "min": np.minimum,
    "max": np.maximum,
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "cvta": lambda a: a,
    "not": lambda a: ~a,
    "neg": lambda a: -a,
}


@dataclass(frozen=True)
class SharedAccess:
    """Instructions of one source line. A wavefront is one pass over the banks; `ideal` is the least number of them."""

    kind: str  # "load" or "store"
    file: str
    line: int
    instructions: int
    wavefronts: int
    ideal_wavefronts: int


def shared_accesses(binary: Binary) -> tuple[SharedAccess, ...]:
    """Return the accesses by source line, for the first warp of a block. Empty for targets other than NVIDIA."""
    if "ptx" not in binary.assembly:
        return ()
    totals: defaultdict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for kind, instruction, needed, ideal in _found(binary.assembly["ptx"]):
        file, line = _user_line(instruction)
        total = totals[file, line, kind]
        for place, number in enumerate((1, needed, ideal)):
            total[place] += number
    return tuple(SharedAccess(kind, file, line, *total) for (file, line, kind), total in sorted(totals.items()))


def wavefronts(addresses: Lanes, width: int) -> int:
    """Return the wavefronts of a warp's access of `width` bytes a lane; lanes may share a word."""
    groups = max(1, width * len(addresses) // _WAVEFRONT_BYTES)
    turns = 0
    for group in np.array_split(addresses, groups):
        words = np.unique(np.concatenate([(group + offset) // BANK_BYTES for offset in range(0, width, BANK_BYTES)]))
        turns += int(np.bincount(words % BANKS, minlength=BANKS).max())
    return turns


def _user_line(instruction: Instruction) -> tuple[str, int]:
    """Return the kernel's line, also where the instruction is in one of Triton's own functions."""
    inside = instruction.file.startswith(_LIBRARY) and instruction.caller is not None
    return instruction.caller if inside and instruction.caller else (instruction.file, instruction.line)


def _found(ptx: str) -> Iterator[tuple[str, Instruction, int, int]]:
    registers: dict[str, Lanes] = {"%tid.x": np.arange(LANES)}
    for instruction in located_instructions(ptx):
        match = _INSTRUCTION.match(instruction.text)
        if match is None:
            continue
        opcode, operands = match.groups()
        name = opcode.split(".")[0]
        if name in ("ld", "st", "ldmatrix", "stmatrix") and ".shared" in opcode:
            address = _address(operands, registers)
            if address is not None:
                yield ("load" if name.startswith("ld") else "store", instruction, *_turns(opcode, address))
        _assign(name, opcode, operands, registers)


def _turns(opcode: str, address: Lanes) -> tuple[int, int]:
    if "matrix" in opcode:
        # Each lane gives the address of a row of 16 bytes; eight rows are a matrix, at best one wavefront.
        matrices = _MATRIX.search(opcode)
        count = int(matrices[1]) if matrices else 1
        return wavefronts(address[: 8 * count], 16), count
    element, vector = _BITS.search(opcode), _VECTOR.search(opcode)
    width = (int(element[1]) // 8 if element else 4) * (int(vector[1]) if vector else 1)
    return wavefronts(address, width), max(1, np.unique(address).size * width // _WAVEFRONT_BYTES)


def _address(operands: str, registers: dict[str, Lanes]) -> Lanes | None:
    found = _ADDRESS.search(operands)
    if found is None:
        return None
    base = registers.get(found[1])
    if base is None and not found[1].startswith("%"):
        base = np.zeros(LANES, dtype=np.int64)  # a variable: its address is the same for all lanes
    return None if base is None else base + _number(found[2] or "0")


def _assign(name: str, opcode: str, operands: str, registers: dict[str, Lanes]) -> None:
    destination, *sources = (operand.strip() for operand in operands.split(","))
    if not destination.startswith("%"):
        return
    operation = _ARITHMETIC.get(opcode, _ARITHMETIC.get(name))
    values = [_value(source, registers) for source in sources]
    if operation is None or any(value is None for value in values):
        registers.pop(destination, None)
        return
    try:
        with np.errstate(divide="ignore"):  # %ntid and parameters stand for numbers that are not known here
            result: Any = operation(*values)
    except TypeError:  # a form of the instruction with other operands
        registers.pop(destination, None)
        return
    registers[destination] = _cut(np.broadcast_to(np.asarray(result), (LANES,)), opcode)


def _value(operand: str, registers: dict[str, Lanes]) -> Lanes | None:
    if operand.startswith("%"):
        # The block's number and the kernel's parameters are the same for all lanes.
        shared = operand.startswith(("%ctaid", "%nctaid", "%ntid"))
        return np.zeros(LANES, dtype=np.int64) if shared else registers.get(operand)
    try:
        return np.full(LANES, _number(operand), dtype=np.int64)
    except ValueError:
        return np.zeros(LANES, dtype=np.int64) if re.fullmatch(r"[A-Za-z_$][\w$]*", operand) else None


def _cut(value: Lanes, opcode: str) -> Lanes:
    """Return the value truncated to the instruction's width; signed, because right shifts need the sign."""
    bits = _BITS.search(opcode)
    if bits is None or int(bits[1]) != 32 or ".wide" in opcode:
        return value
    return ((value + (1 << 31)) % (1 << 32)) - (1 << 31)


def _number(text: str) -> int:
    """Return the number as a signed one of 64 bits: PTX writes some constants as unsigned."""
    return ((int(text, 0) + (1 << 63)) % (1 << 64)) - (1 << 63)
