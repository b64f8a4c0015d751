"""Cross entropy of a linear layer's outputs: loss = cross_entropy(hidden · weightᵀ + bias, target), without the logits.

With R rows, H features and V classes this is three GEMMs of 2·R·H·V flops each: the logits, and the gradients of hidden
and weight. The BLAS computes them. R·V logits take far more memory than anything else, so:

- the rows are taken in chunks, and only one chunk of logits exists at a time. A kernel of cross_entropy computes the
  losses and overwrites the logits with their gradient, row by row: memory is read and written once. The BLAS adds that
  chunk's part to the gradients;
- where gradients are needed, the forward computes them: a later backward would compute the logits again, a third more
  work. The backward multiplies the gradients by the incoming gradient. That moves 2·V·H elements, one percent of the
  time. It moves none where the incoming gradient is one and no second backward can follow. In float16 the gradient of a
  mean over thousands of rows underflows, so the forward computes that of the sum, and the factor is never one;
- for reduction="none" each row has its own factor, which comes before the sum over rows. There the forward keeps two
  numbers a row, and the backward computes the logits again;
- nothing waits for the GPU, and without gradients only the first GEMM runs.

Files, in reading order:

- `operator.py`: what users call, its meaning, checks, gradient and spec.
- `chunks.py`: the loss and the gradients, chunk by chunk.
- `scaling.py`: kept gradients times the incoming gradient.
"""

from tilesmith.ops.linear_cross_entropy.operator import SPEC, linear_cross_entropy

__all__ = ["SPEC", "linear_cross_entropy"]
