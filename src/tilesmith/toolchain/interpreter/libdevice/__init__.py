"""The functions of `triton.language.extra` for the interpreter: libdevice, and `tl.extra.cuda`.

Files, in reading order:

- `calls.py`: calls of such functions on blocks.
- `functions.py`: what each function of libdevice computes, by name.
"""

from tilesmith.toolchain.interpreter.libdevice.calls import functions

__all__ = ["functions"]
