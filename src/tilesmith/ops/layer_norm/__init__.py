"""LayerNorm over the last dimension: y = (x − mean(x)) / √(var(x) + eps) · w + b.

Forward moves two elements per output (read x, write y; w and b stay in cache) and does about seven flops on each;
backward moves three (read x and dy, write dx) and does about fifteen. Memory-bound on every GPU, so:

- a row is read from memory once. Its mean is known before its variance is summed up, or both come from running means
  that are merged at the end: never from mean(x²) − mean(x)², which loses everything where the mean is large;
- nothing is kept for the backward but x, w and b: mean and variance cost no extra read there, since x is read anyway;
- the gradients of w and b are summed over rows in the same sweep that computes dx.
"""

from tilesmith.ops.layer_norm.operator import SPEC, layer_norm

__all__ = ["SPEC", "layer_norm"]
