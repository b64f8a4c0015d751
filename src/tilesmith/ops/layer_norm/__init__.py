"""LayerNorm over the last dimension: y = (x − mean(x)) / √(var(x) + eps) · w + b.

Forward moves two elements per output (read x, write y; w and b stay in cache) and does about seven flops on each;
backward moves three (read x and dy, write dx) and does about fifteen. Memory-bound on every GPU, so:

- A row is read from memory once. The kernels sum the variance after the mean, or use Welford's algorithm. They never
  use mean(x²) − mean(x)², which loses all precision where the mean is large.
- The backward keeps only x, w and b. It computes mean and variance again, without an extra read of x.
- One sweep computes dx and the gradients of w and b.

Files, in reading order:

- `operator.py`: what users call, its checks, its gradient and its spec.
- `forward.py`: the forward kernels, their forms and their plan.
- `welford.py`: device functions for means and variances of rows that are read block by block.
- `backward.py`: the backward's forms and plans.
- `backward_kernels.py`: the backward kernels.
"""

from tilesmith.ops.layer_norm.operator import SPEC, layer_norm

__all__ = ["SPEC", "layer_norm"]
