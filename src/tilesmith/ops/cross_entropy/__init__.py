"""Cross entropy over the last dimension: loss = log Σ exp(x) − x[target], the mean over the rows that count.

With L bytes of logits the forward reads L and writes next to nothing, the backward reads L and writes L; about five
flops go with each element. Memory-bound on every GPU, so:

- a row is read once for its maximum and its sum of exponentials together, each thread keeping its own until the end;
- kept for the backward are two numbers per row, so that the gradient is computed element by element, in tiles of any
  shape, and no row is waited for. The logits are never copied to single precision;
- the gradient is computed in the backward: 3 L are moved, whatever gradient comes in. A forward that left the gradient
  behind would move 2 L only where the incoming gradient is exactly one, and 4 L where the loss is scaled, weighted or
  divided by a number of accumulation steps. It would hold that gradient from the forward on, and its backward, which
  learns the factor on the GPU, would have to overwrite what a second backward needs.
"""

from tilesmith.ops.cross_entropy.operator import SPEC, cross_entropy

__all__ = ["SPEC", "cross_entropy"]
