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
- `kernel_arguments.py`: arguments of a launch as the kernel sees them.
- `observing/`: observers, the facts that they see, and the lines of the user's source.
- `memory.py`: the tensors of a launch, and accesses within and out of bounds.
- `program.py`: the state of the program that runs, shared by the files below.
- `tiles.py`: tiles of tensor descriptors.
- `patches.py`: corrections of the stock interpreter.
- `numerics.py`: bfloat16 and 8-bit floats, which numpy lacks.
- `reductions.py`: reductions and scans.
- `libdevice/`: functions of libdevice.
- `ptx.py`: inline PTX.
- `values/`: undefined values, error, infinities and hints.
- `language.py`: functions of `triton.language` for the interpreter.
- `shapes.py`: shapes computed once.
- `loops.py`: loops that never end.
- `rewriting.py`: kernels rewritten before they run.
- `together/`: many programs of a launch, computed together.
- `gluon/`: an interpreter of Gluon kernels.
"""

from tilesmith.toolchain.interpreter.memory import live_tensors
from tilesmith.toolchain.interpreter.observing.observers import (  # fmt: skip
    Access,
    Birth,
    Dot,
    Doubt,
    Hint,
    Misuse,
    Observer,
    Operation,
    OutOfBounds,
    Program,
    Rounding,
    Step,
    Undefined,
)
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
from tilesmith.toolchain.interpreter.together.lockstep import interpret_together

__all__ = [
    "Access",
    "Birth",
    "Dot",
    "Doubt",
    "Hint",
    "KernelError",
    "Launched",
    "Misuse",
    "Observer",
    "Operation",
    "OutOfBounds",
    "Program",
    "Rounding",
    "Step",
    "Undefined",
    "configured",
    "handing_over",
    "interpret",
    "interpret_together",
    "interpreting",
    "is_interpreting",
    "launch_as_usual",
    "live_tensors",
]
