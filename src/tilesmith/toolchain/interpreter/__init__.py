"""Triton's interpreter, usable in any process: kernels run on CPU tensors, one program after another, in numpy.

    with interpreting():
        kernel[grid](x, y, n, BLOCK_SIZE=256)

No environment variable is needed and compiling works before, between and after. Accesses outside the arguments' memory
raise `OutOfBounds` instead of crashing, an `Observer` sees every access, and arithmetic is that of hardware where the
stock interpreter's is not. `tl.dot` on float32 is exact whatever its input precision.
"""

from tilesmith.toolchain.interpreter.memory import Access, Dot, Observer, OutOfBounds
from tilesmith.toolchain.interpreter.operations import Operation
from tilesmith.toolchain.interpreter.running import (
    KernelError,
    Launched,
    handing_over,
    interpret,
    interpreting,
    is_interpreting,
    launch_as_usual,
)

__all__ = [
    "Access",
    "Dot",
    "KernelError",
    "Launched",
    "Observer",
    "Operation",
    "OutOfBounds",
    "handing_over",
    "interpret",
    "interpreting",
    "is_interpreting",
    "launch_as_usual",
]
