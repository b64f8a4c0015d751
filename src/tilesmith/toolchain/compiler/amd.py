"""Facts from AMD binaries: the assembly text holds the instructions and the metadata of the code object."""

from __future__ import annotations

import re

from tilesmith.toolchain.compiler.assembly import UNKNOWN_WIDTH, Facts, Instruction, located_instructions, tally

_MEMORY = re.compile(r"^\s*(?:global|buffer|flat|scratch)_(load|store|atomic)_(\w+)(.*)")
_SPILL = re.compile(r";\s*(\d+)-byte Folded (?:Spill|Reload)")
_TO_SHARED = re.compile(r"\b(?:global|tensor)_load_\w*lds|\bbuffer_load_\w+ [^;\n]*\blds\b")
_MATRIX_INSTRUCTION = re.compile(r"\bv_s?(?:mfma|wmma)")
_WIDTHS = re.compile(r"dword(?:x(\d))?|[biu](8|16|32|64|96|128)|(short)|(byte)")


def read_facts(amdgcn: str) -> Facts:
    """Return the facts of one kernel's assembly.

    `accesses` leaves out scalar loads, which load one value for all threads of a wave: loads of kernel arguments look
    the same.
    """
    spill_bytes = 0
    found: list[tuple[str, Instruction, int]] = []
    for instruction in located_instructions(amdgcn):
        memory = _MEMORY.match(instruction.text)
        if memory is None:
            continue
        spill = _SPILL.search(memory[3])
        if spill:
            spill_bytes += int(spill[1])
        elif not instruction.text.lstrip().startswith("scratch"):
            found.append((memory[1], instruction, _thread_bytes(memory[1], memory[2])))
    return Facts(
        # The register file is unified: the count includes accumulation registers.
        registers=_metadata(amdgcn, "vgpr_count"),
        scalar_registers=_metadata(amdgcn, "sgpr_count"),
        spill_bytes=spill_bytes,
        stack_bytes=_metadata(amdgcn, "private_segment_fixed_size"),
        tensor_cores=_MATRIX_INSTRUCTION.search(amdgcn) is not None,
        async_copies=_TO_SHARED.search(amdgcn) is not None,
        accesses=tally(found),
    )


def _metadata(amdgcn: str, key: str) -> int:
    value = re.search(rf"^\s+(?:- )?\.{key}:\s+(\d+)", amdgcn, re.MULTILINE)
    if value is None:
        raise RuntimeError(f"the AMD assembly has no .{key} in its metadata")
    return int(value[1])


def _thread_bytes(kind: str, name: str) -> int:
    """Return the bytes that one thread moves: 16 for `dwordx4`, 2 for `ushort`."""
    if kind == "atomic":
        return 8 if re.search(r"_x2|64", name) else 4
    width = _WIDTHS.search(name)
    if width is None:
        return UNKNOWN_WIDTH
    words, bits, short, byte = width.groups()
    if bits:
        return int(bits) // 8
    if short or byte:
        return 2 if short else 1
    return 4 * int(words or 1)
