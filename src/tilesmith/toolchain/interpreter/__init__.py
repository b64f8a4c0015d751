"""Triton's interpreter, usable in any process: kernels run on CPU tensors, one program after another, in numpy.

    with interpreting():
        kernel[grid](x, y, n, BLOCK_SIZE=256)

No environment variable is needed, and the same process can still compile. Accesses outside the arguments' memory raise
`OutOfBounds` instead of crashing. An `Observer` sees every access. Arithmetic follows the hardware, also where that of
the stock interpreter does not. `tl.dot` on float32 rounds its operands as `input_precision` says; the
default is tf32.

Files, in reading order:

- `running.py`: `interpreting` and `interpret`, and errors with the kernel's line.
- `driver.py`: what a script finds in place of a GPU.
- `host.py`: arguments of a launch, checked and copied to host memory.
- `memory.py`: bounds of the arguments, and observers of accesses.
- `operations.py`: operations that an observer sees.
- `values/`: undefined values, error, infinities and hints.
- `all_programs.py`: the addresses of every program, computed for many programs at once.
- `tiles.py`: tiles of tensor descriptors.
- `lockstep.py`: many programs performed together.
- `gluon/`: an interpreter of Gluon kernels.
- `language.py`: functions of `triton.language` for the interpreter.
- `patches.py`: corrections of the stock interpreter.
- `numerics.py`: bfloat16 and 8-bit floats, which numpy lacks.
- `reductions.py`: reductions and scans.
- `libdevice/`: functions of libdevice.
- `ptx.py`: inline PTX.
- `shapes.py`: shapes computed once.
- `rewriting.py`: kernels rewritten before they run.
"""

from tilesmith.toolchain.interpreter.lockstep import interpret_together
from tilesmith.toolchain.interpreter.memory import Access, Dot, Misuse, Observer, OutOfBounds
from tilesmith.toolchain.interpreter.operations import Operation
from tilesmith.toolchain.interpreter.running import (
    KernelError,
    Launched,
    configured,
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
    "Misuse",
    "Observer",
    "Operation",
    "OutOfBounds",
    "configured",
    "handing_over",
    "interpret",
    "interpret_together",
    "interpreting",
    "is_interpreting",
    "launch_as_usual",
]
