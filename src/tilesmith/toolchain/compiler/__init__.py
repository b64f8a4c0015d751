"""Compiling a kernel for any named GPU, and reading facts from the binary.

Files, in reading order:

- `targets.py`: names of GPU architectures, such as `cuda:90`.
- `compile.py`: compiling a kernel as a launch would.
- `inline_assembly.py`: errors in inline assembly, which only the assembler reads.
- `errors.py`: compiler errors in one text that a user can act on.
- `lost_assignments.py`: assignments in loops that Triton's front end loses.
- `binary.py`: a compiled kernel and the facts of its binary.
- `assembly.py`: instructions of PTX and AMD assembly by source line.
- `instructions.py`: PTX with the registers of each instruction, and its loops.
- `nvidia.py`: facts from PTX, cubin and SASS.
- `amd.py`: facts from AMD assembly.
- `texts.py`: the texts of a compilation, line by line with their source lines.
- `layouts.py`: which thread accesses which element of global memory.
- `linear.py`: Triton's linear layouts, for layouts without a formula.
- `shared.py`: which shared-memory addresses the lanes of a warp access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilesmith.toolchain.compiler.targets import DEFAULT_TARGETS, Target

if TYPE_CHECKING:
    from tilesmith.toolchain.compiler.assembly import Access
    from tilesmith.toolchain.compiler.binary import Binary
    from tilesmith.toolchain.compiler.compile import (
        accepted_options,
        compile_kernel,
        jit_function,
        needs_scratch_memory,
        prepare,
        require_compilable,
        translate_kernel,
    )
    from tilesmith.toolchain.compiler.errors import CompileError, MiscompileError
    from tilesmith.toolchain.compiler.lost_assignments import may_lose_assignments

__all__ = [
    "DEFAULT_TARGETS",
    "Access",
    "Binary",
    "CompileError",
    "MiscompileError",
    "Target",
    "accepted_options",
    "compile_kernel",
    "jit_function",
    "may_lose_assignments",
    "needs_scratch_memory",
    "prepare",
    "require_compilable",
    "translate_kernel",
]

_HOMES = {
    "Access": "assembly",
    "Binary": "binary",
    "CompileError": "errors",
    "MiscompileError": "errors",
    "may_lose_assignments": "lost_assignments",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: the names of targets need no Triton."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'compile')}"), name)
