"""A compiled kernel and the facts of its binary."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilesmith.toolchain.compiler import amd, nvidia
from tilesmith.toolchain.compiler.assembly import Access
from tilesmith.toolchain.compiler.targets import Target

_TEXTS = ("ttir", "ttgir", "llir", "ptx", "amdgcn")


@dataclass(frozen=True)
class Binary:
    """One kernel compiled for one target. All counts are per thread unless they say otherwise.

    - `num_warps`: warps of a block, including those that the compiler added for warp specialisation.
    - `num_stages`: software pipeline stages of a loop, as the launch requested.
    - `registers`: 32-bit registers; on AMD, vector and accumulation registers together.
    - `scalar_registers`: AMD's registers that one wave shares; None on NVIDIA.
    - `spill_bytes`: bytes that register spills load and store, each instruction counted once.
    - `stack_bytes`: local memory: spilled registers, and buffers of `device_print`.
    - `shared_bytes`: shared memory of one block, without the hardware's own part.
    - `scratch_bytes`: global memory that a launch must allocate for each block, such as for TMA descriptors that the
      kernel creates.
    - `tensor_cores`, `async_copies`: whether any instruction uses matrix units, or copies global to shared memory
      without passing through registers.
    - `accesses`: the instructions that touch global memory, by source line.
    - `assembly`: ttir, ttgir, llir, and ptx with sass or amdgcn. Reading sass takes most of a second.
    """

    target: Target
    kernel: str
    num_warps: int
    registers: int
    scalar_registers: int | None
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    tensor_cores: bool
    async_copies: bool
    accesses: tuple[Access, ...] = field(repr=False)
    assembly: Mapping[str, str] = field(repr=False, compare=False)
    num_stages: int | None = None
    scratch_bytes: int = 0

    @property
    def vector_bytes(self) -> int:
        """Return the bytes of the widest global access; 0 where there is none."""
        return max((access.vector_bytes for access in self.accesses), default=0)


class Assembly(Mapping[str, str]):
    """The texts of a compilation by name; SASS is disassembled at the first read.

    Triton's cache may hold a compilation from when the kernel's file had another name. The texts here have the present
    name.
    """

    def __init__(self, texts: Mapping[str, str], cubin: bytes | None, file: str) -> None:
        self._old = _file_of_kernel(texts) or file
        self._new = file
        self._texts = {name: self._renamed(text) for name, text in texts.items()}
        self._cubin = cubin

    def __getitem__(self, name: str) -> str:
        if name == "sass" and self._cubin is not None and name not in self._texts:
            self._texts[name] = self._renamed(nvidia.disassemble(self._cubin))
        return self._texts[name]

    def _renamed(self, text: str) -> str:
        if self._old == self._new:
            return text
        (old_folder, old_name), (folder, name) = os.path.split(self._old), os.path.split(self._new)
        text = text.replace(f'"{self._old}"', f'"{self._new}"')
        return text.replace(f'"{old_folder}" "{old_name}"', f'"{folder}" "{name}"')

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        yield from self._texts
        if self._cubin is not None and "sass" not in self._texts:
            yield "sass"

    def __len__(self) -> int:
        return len(list(iter(self)))


def _file_of_kernel(texts: Mapping[str, str]) -> str | None:
    """Return the file of the kernel as the compilation names it: the first location in the text."""
    found = re.search(r'^#loc = loc\("([^"]+)":\d+:\d+\)$', texts.get("ttgir", ""), re.MULTILINE)
    return found[1] if found else None


def read_binary(target: Target, compiled: Any, file: str) -> Binary:
    """Return the facts of a compiled kernel whose source is in `file`."""
    cubin: bytes | None = compiled.asm.get("cubin")
    assembly = Assembly({name: compiled.asm[name] for name in _TEXTS if name in compiled.asm}, cubin, file)
    kernel: str = compiled.metadata.name
    facts = amd.read_facts(assembly["amdgcn"]) if cubin is None else nvidia.read_facts(kernel, assembly, cubin)
    return Binary(
        target=target,
        kernel=kernel,
        num_warps=compiled.metadata.num_warps,
        shared_bytes=compiled.metadata.shared,
        assembly=assembly,
        num_stages=getattr(compiled.metadata, "num_stages", None),
        scratch_bytes=getattr(compiled.metadata, "global_scratch_size", 0),
        **vars(facts),
    )
