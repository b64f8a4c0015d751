"""RMSNorm over the last dimension: y = x / √(mean(x²) + eps) · w.

Forward moves two elements per output (read x, write y; w stays in cache) and does about four flops on each; backward
moves three (read x and dy, write dx) and does about twelve. Memory-bound on every GPU, so:

- A row is read from memory once. It stays in registers between the sum of squares and the scaling. The second read of
  a row too wide for that comes from cache.
- The backward keeps only x and w. It computes 1/√(mean(x²) + eps) again, without an extra read of x.
- One sweep computes dx and the weight's gradient: each program adds up its own rows in registers and leaves one row of
  partial sums.

Files, in reading order:

- `operator.py`: what users call, its checks, its gradient and its spec.
- `forward.py`: the forward kernels, their forms and their plan.
- `backward.py`: the backward kernels, their forms and their plan.
- `one_plus.py`: the kernels with the factor 1 + weight.
"""

from tilesmith.ops.rms_norm.operator import SPEC, rms_norm

__all__ = ["SPEC", "rms_norm"]
