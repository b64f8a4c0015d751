"""Matrix products: y = act(a·b + bias), for matrices, vectors and batches.

A product of M×K and K×N does 2·M·N·K flops on as few as M·K + K·N + M·N elements. From a few hundred rows on it is
bound by the tensor cores, so what counts is that operands reach them without passing through registers, that tiles are
large, and that storing one tile overlaps with loading the next. With few rows all that counts is to read the larger
operand once, at the full rate of memory.

- Hopper: blocks come by the copy engine (`descriptors`), anything else and any stride by pointers (`pointers`).
- Single precision is exact by default: three bf16 numbers per element (`planes`), six products on tensor cores; on
  Hopper, of narrow and small products these are made one step ahead of them (`hopper_exact`).
- Few tiles and much depth: programs share the depth, and their sums are added in order (`shares`).
"""

from tilesmith.ops.matmul.operator import SPEC, matmul

__all__ = ["SPEC", "matmul"]
