"""Rotary position embedding: rotate pairs of elements of q and k by the angle of their position,

y₁ = x₁ · cos − x₂ · sin,    y₂ = x₂ · cos + x₁ · sin.

The kernel moves two elements per element of q and k and does three flops on each: memory-bound on every GPU.

- One launch rotates q and k.
- A program holds the tables of some positions in registers and rotates several heads with them, so that it reads the
  tables once for all of these heads.
- A program issues all its loads before it rotates anything.
- The gradient is a rotation back by the same kernel.

Files, in reading order:

- `operator.py`: what users call, its checks, its gradient and its spec.
- `plan.py`: block sizes and the launch, forward and backward.
- `kernel.py`: the kernel and its device functions.
"""

from tilesmith.ops.rope.operator import SPEC, reference, rope
from tilesmith.ops.rope.plan import backward, forward

__all__ = ["SPEC", "backward", "forward", "reference", "rope"]
