"""Facts from NVIDIA binaries: accesses from PTX, resources from the cubin.

Registers and stack come from `cuobjdump`, which takes milliseconds. `nvdisasm` takes most of a second. So SASS is made
only when it is read, or when a kernel has a stack and its spills must be counted.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from triton import knobs

from tilesmith.toolchain.compiler.assembly import UNKNOWN_WIDTH, Access, Facts, located_instructions, tally

_OPCODE = re.compile(r"^\s*(?:@!?%p\d+\s+)?((?:ld|st|atom|red|cp)\.\S+)")
_ELEMENT = re.compile(r"(?:b|u|s|f|bf)(\d+)(x2)?;?$")
_COPIED_BYTES = re.compile(r"\],\s*(0x[0-9a-fA-F]+|\d+)")
_LOCAL_TRAFFIC = re.compile(r"\b(?:STL|LDL)((?:\.\w+)*)")
_LOCAL_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
_MATRIX_INSTRUCTION = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|w?mma\.sync|mma\.sp)")
_KINDS = {"ld": "load", "st": "store", "atom": "atomic", "red": "atomic"}

# Bulk copies move tiles; their sizes and addresses are multiples of 16 bytes.
_BULK_GRANULE = 16


def read_facts(kernel: str, assembly: Mapping[str, str], cubin: bytes) -> Facts:
    """Return the facts of one cubin; `assembly` holds its PTX and, made at the first read, its SASS."""
    ptx = assembly["ptx"]
    registers, stack_bytes = _resource_usage(kernel, cubin)
    return Facts(
        registers=registers,
        scalar_registers=None,
        spill_bytes=_spill_bytes(ptx, assembly["sass"]) if stack_bytes else 0,
        stack_bytes=stack_bytes,
        tensor_cores=_MATRIX_INSTRUCTION.search(ptx) is not None,
        async_copies="cp.async" in ptx,
        accesses=global_accesses(ptx),
    )


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a cubin, with source lines as comments."""
    return _run_on(cubin, knobs.nvidia.nvdisasm.path, "-c", "-g")


def _run_on(cubin: bytes, *command: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        return subprocess.run([*command, str(file)], capture_output=True, text=True, check=True).stdout


def _resource_usage(kernel: str, cubin: bytes) -> tuple[int, int]:
    report = _run_on(cubin, knobs.nvidia.cuobjdump.path, "-res-usage")
    usage = re.search(rf"Function {re.escape(kernel)}:\s+REG:(\d+) STACK:(\d+)", report)
    if usage is None:
        raise RuntimeError(f"cuobjdump reports no resource usage of {kernel}:\n{report}")
    return int(usage[1]), int(usage[2])


def _spill_bytes(ptx: str, sass: str) -> int:
    """Return local memory traffic beyond the program's own, such as that of `device_print`."""
    asked_for = sum(_thread_bytes(opcode) for opcode in re.findall(r"\b(?:ld|st)\.local\S*", ptx))
    return max(0, local_traffic(sass) - asked_for)


def local_traffic(sass: str) -> int:
    """Return the bytes that one thread moves to and from local memory, each instruction counted once."""
    return sum(
        next((width for name, width in _LOCAL_WIDTHS.items() if name in modifiers.split(".")), 4)
        for modifiers in _LOCAL_TRAFFIC.findall(sass)
    )


def global_accesses(ptx: str) -> tuple[Access, ...]:
    """Return the instructions of a PTX text that access global memory."""
    found = []
    for instruction in located_instructions(ptx):
        match = _OPCODE.match(instruction.text)
        if match and "global" in match[1].split("."):
            found.append((_kind(match[1]), instruction, _access_bytes(match[1], instruction.text)))
    return tally(found)


def _kind(opcode: str) -> str:
    parts = opcode.split(".")
    if parts[0] != "cp":
        return _KINDS[parts[0]]
    if "reduce" in parts:
        return "atomic"
    # A copy names its destination first; a prefetch has none.
    destinations = parts[: parts.index("global")]
    return "load" if "prefetch" in parts or any(part.startswith("shared") for part in destinations) else "store"


def _access_bytes(opcode: str, text: str) -> int:
    if "bulk" in opcode.split("."):
        return _BULK_GRANULE
    if opcode.startswith("cp."):
        size = _COPIED_BYTES.search(text)
        return int(size[1], 0) if size else UNKNOWN_WIDTH
    return _thread_bytes(opcode)


def _thread_bytes(opcode: str) -> int:
    """Return the bytes that one thread moves: 16 for `ld.global.v4.b32`."""
    element = _ELEMENT.search(opcode)
    vector = re.search(r"\.v(\d)", opcode)
    if element is None:
        return UNKNOWN_WIDTH
    return int(element[1]) // 8 * (2 if element[2] else 1) * (int(vector[1]) if vector else 1)
