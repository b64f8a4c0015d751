"""Compiling a kernel for a named GPU that need not be here, and reading facts out of the binary."""

from tilesmith.toolchain.compiler.assembly import Access
from tilesmith.toolchain.compiler.binary import Binary
from tilesmith.toolchain.compiler.compile import accepted_options, compile_kernel, jit_function
from tilesmith.toolchain.compiler.errors import CompileError
from tilesmith.toolchain.compiler.targets import DEFAULT_TARGETS, Target

__all__ = [
    "DEFAULT_TARGETS",
    "Access",
    "Binary",
    "CompileError",
    "Target",
    "accepted_options",
    "compile_kernel",
    "jit_function",
]
