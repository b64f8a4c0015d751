"""RMSNorm over the last dimension: y = x / √(mean(x²) + eps) · w.

Forward moves two elements per output (read x, write y; w stays in cache) and does about four flops on each; backward
moves three (read x and dy, write dx) and does about twelve. Memory-bound on every GPU, so:

- a row is read from memory once. It stays in registers between the sum of squares and the scaling; a row too wide for
  that is read a second time, from the L2 cache;
- nothing is kept for the backward but x and w: 1/√(mean(x²) + eps) costs no extra read there, since x is read anyway;
- the weight's gradient is summed over rows in the same sweep that computes dx: each program adds up its own rows in
  registers and leaves one row of partial sums.
"""

from tilesmith.ops.rms_norm.operator import SPEC, rms_norm

__all__ = ["SPEC", "rms_norm"]
