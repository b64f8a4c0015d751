"""Inline PTX in the interpreter: straight-line arithmetic on 32-bit registers, and accesses to global memory.

Each register is a block with one value per element. An instruction that is not in the tables here raises
`UnknownOperation` with its name.
"""

from __future__ import annotations

import itertools
import operator
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle, _ir

from tilesmith.toolchain.interpreter.numerics import narrow, numpy_dtype
from tilesmith.toolchain.interpreter.program import ProgramBuilder

Array = NDArray[Any]
_TYPES = {"f32": np.float32, "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "f64": np.float64}
_WIDE = {"s64": np.int64, "u64": np.uint64, "b64": np.uint64}
_UNARY: dict[str, Callable[[Array], Array]] = {
    "mov": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "not": np.invert,
    "rcp": np.reciprocal,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": lambda x, by: np.where(by < 32, x << np.minimum(by, 31), 0).astype(x.dtype),
    "shr": lambda x, by: x >> np.minimum(by, 31).astype(x.dtype),
}
_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "lo": "lt", "ls": "le"}
_NO_EFFECT = ("fence", "membar", "nanosleep", "griddepcontrol", "bar", "prefetch", "applypriority", "discard")
_WAITS = ("cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read")  # TMA stores take effect when they start
_PAIRS = {"cvt.rn.bf16x2.f32": "bf16", "cvt.rn.f16x2.f32": "fp16"}


_reads = itertools.count(1)


def _special_register(name: str) -> int:
    """Return a value that a GPU could give. A kernel whose result depends on it has no right result."""
    mixed = next(_reads) * 2654435761
    known = {"%clock": mixed % 2**32, "%clock64": mixed, "%globaltimer": time.time_ns(), "%smid": mixed % 132}
    if name not in known:
        raise UnknownOperation(f"{name} in inline assembly")
    return known[name]


class UnknownOperation(Exception):
    """The interpreter does not know an operation."""


def inline_assembly(
    builder: ProgramBuilder, text: str, values: Sequence[Any], kinds: Sequence[Any], pack: int
) -> list[Any]:
    """Return the results of inline PTX on blocks, one for each of `kinds`, which are scalar types."""
    if pack != 1:
        raise UnknownOperation(f"inline assembly with pack={pack}")
    shape = np.broadcast_shapes(*(value.data.shape for value in values)) if values else (1,)
    registers: dict[str, Any] = {f"${len(kinds) + place}": value for place, value in enumerate(values)}
    program = _Program(builder, shape, registers)
    for line in re.sub(r"//[^\n]*", "", text).replace("\n", " ").split(";"):
        program.perform(_without_scope(line))
    return [program.result(f"${place}", kind) for place, kind in enumerate(kinds)]


def _without_scope(line: str) -> str:
    """Return an instruction without the braces around a block of them; those around vectors stay."""
    line = line.strip()
    while line.startswith(("{", "}")):
        line = line[1:].strip()
    return line.removesuffix("}").strip() if line.count("}") > line.count("{") else line


class _Program:
    """The registers of inline PTX, by name."""

    def __init__(self, builder: ProgramBuilder, shape: tuple[int, ...], registers: dict[str, Any]) -> None:
        self._builder = builder
        self._shape = shape
        self._registers = registers

    def perform(self, instruction: str) -> None:
        if not instruction or instruction.startswith(".reg"):
            return
        name, _, rest = instruction.partition(" ")
        parts = name.split(".")
        operands = [one.strip() for one in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,]+", rest)]
        if parts[0] in _NO_EFFECT or name in _WAITS:
            return
        if parts[0] in ("ld", "st", "red") and "shared" not in parts:
            self._access(parts, operands)
        elif parts[0] == "setp" and len(parts) == 3 and parts[1] in _COMPARISONS:
            compare = getattr(operator, _COMPARISONS[parts[1]])
            self._registers[operands[0]] = compare(*(self._read(one, parts[2], name) for one in operands[1:]))
        elif parts[0] == "selp":
            first, second = (self._read(one, parts[-1], name) for one in operands[1:3])
            self._registers[operands[0]] = np.where(self._registers[operands[3]], first, second)
        elif name in _PAIRS:
            high, low = (narrow(self._read(one, "f32", name), _PAIRS[name]) for one in operands[1:])
            self._registers[operands[0]] = high.view(np.uint16).astype(np.uint32) << 16 | low.view(np.uint16)
        elif parts[0] == "fma":
            x, y, z = (self._read(one, parts[-1], name).astype(np.float64) for one in operands[1:])
            self._registers[operands[0]] = (x * y + z).astype(np.float32)
        else:
            self._compute(name, parts, operands)

    def result(self, name: str, kind: Any) -> Any:
        """Return a register as a block of a scalar type, with the same bits."""
        if name not in self._registers:
            raise UnknownOperation("inline assembly that leaves an output unwritten")
        value = self._registers[name]
        data = np.broadcast_to(getattr(value, "data", value) if isinstance(value, TensorHandle) else value, self._shape)
        dtype = np.dtype(numpy_dtype(kind))
        data = np.ascontiguousarray(data)
        return TensorHandle(data.view(dtype) if data.dtype.itemsize == dtype.itemsize else data.astype(dtype), kind)

    def _compute(self, name: str, parts: list[str], operands: list[str]) -> None:
        kind, count = parts[-1], len(operands) - 1
        table: Any = {1: _UNARY, 2: _BINARY}.get(count, {})
        if parts[0] not in table or (kind not in _TYPES and kind not in _WIDE) or parts[1:2] == ["hi"]:
            raise UnknownOperation(f"{name} in inline assembly")
        inputs = [self._read(one, kind, name) for one in operands[1:]]
        dtype = inputs[0].dtype
        self._registers[operands[0]] = np.asarray(table[parts[0]](*inputs)).astype(dtype, copy=False)

    def _read(self, operand: str, kind: str, name: str) -> Array:
        """Return an operand with the bits of a PTX type."""
        dtype = np.dtype({**_TYPES, **_WIDE}.get(kind, np.uint32))
        if operand.startswith("%"):
            return np.array([_special_register(operand)]).astype(dtype)
        if re.fullmatch(r"0f[0-9A-Fa-f]{8}", operand):
            return np.array([int(operand[2:], 16)], np.uint32).view(dtype)
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)", operand):
            return np.array([int(operand, 0)]).astype(dtype)
        if operand not in self._registers:
            raise UnknownOperation(f"{operand} of {name} in inline assembly")
        value = self._registers[operand]
        data = np.ascontiguousarray(value.data if isinstance(value, TensorHandle) else value)
        if data.dtype.itemsize != dtype.itemsize:
            raise UnknownOperation(f"{name} on {8 * data.dtype.itemsize}-bit values in inline assembly")
        return data.view(dtype)

    def _access(self, parts: list[str], operands: list[str]) -> None:
        """Load, store or add one value or a vector of them."""
        kind = parts[-1]
        place, content = (operands[1], operands[0]) if parts[0] == "ld" else (operands[0], operands[1])
        address = self._registers.get(place.strip("[] "))
        if address is None or kind not in _TYPES or (parts[0] == "red" and "add" not in parts):
            raise UnknownOperation(f"{'.'.join(parts)} in inline assembly")
        orders = ("acquire" in parts or "release" in parts) and "cta" not in parts
        strong = orders or any(word in parts for word in ("acquire", "release", "relaxed"))
        ordering = "" if orders else "relaxed "
        element = tl.float32 if kind == "f32" else tl.int32
        for number, register in enumerate(one.strip() for one in content.strip("{}").split(",")):
            pointers = self._pointers(address, element, 4 * number)
            if parts[0] == "ld":
                if strong:
                    loaded = self._builder._load("atomic", pointers, None, None, f"{ordering}load")
                else:
                    loaded = self._builder._load("load", pointers, None, None)
                self._registers[register] = loaded.data
                continue
            data = np.broadcast_to(self._read(register, kind, parts[0]), self._shape)
            value = TensorHandle(np.ascontiguousarray(data).view(numpy_dtype(element)), element)
            if parts[0] == "st":
                operation = f"{ordering}store" if strong else ""
                self._builder._store("atomic" if strong else "store", pointers, value, None, operation)
            else:
                semantic = _ir.MEM_SEMANTIC.RELEASE if orders else _ir.MEM_SEMANTIC.RELAXED
                add = _ir.ATOMIC_OP.FADD if kind == "f32" else _ir.ATOMIC_OP.ADD
                every = TensorHandle(np.ones(self._shape, dtype=bool), tl.int1)
                self._builder.create_atomic_rmw(add, pointers, value, every, semantic, None)

    def _pointers(self, address: Any, element: Any, offset: int) -> Any:
        data = np.broadcast_to(address.data if isinstance(address, TensorHandle) else address, self._shape)
        kind = getattr(address, "dtype", None)
        pointer = kind if isinstance(kind, tl.pointer_type) and kind.element_ty == element else tl.pointer_type(element)
        argument = getattr(kind, "argument", None)
        if argument is not None and pointer is not kind:
            pointer = type(kind)(element, argument)  # type: ignore[misc]  # a pointer type that knows its argument
        return TensorHandle(data.astype(np.uint64) + np.uint64(offset), pointer)
