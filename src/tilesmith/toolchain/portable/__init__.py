"""Launches as plain data: a kernel as its text, arguments as JSON. Another process can rebuild and run them.

Rebuilding never executes code of the kernel's module: the text must be one function of Triton's language, and the names
it uses come as values.

Files, in reading order:

- `values.py`: arguments and global names as JSON, and back.
- `describe.py`: a kernel as text, with the values of the names that it uses.
- `rules.py`: what the text of a kernel may contain.
- `rebuild.py`: a kernel from its description.
- `tensor_cores.py`: products of float32 without the rounding to tf32.
"""

from tilesmith.toolchain.portable.describe import Kernels
from tilesmith.toolchain.portable.rebuild import RebuiltKernels
from tilesmith.toolchain.portable.rules import LAUNCH_OPTIONS, KernelRefused, compares_layouts, depends_on_types
from tilesmith.toolchain.portable.values import NotPortable

__all__ = [
    "LAUNCH_OPTIONS",
    "KernelRefused",
    "Kernels",
    "NotPortable",
    "RebuiltKernels",
    "compares_layouts",
    "depends_on_types",
]
