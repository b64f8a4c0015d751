"""Cross entropy of a linear layer's outputs: loss = cross_entropy(hidden · weightᵀ + bias, target), without the logits.

With R rows, H features and V classes this is three matrix products of 2·R·H·V flops each: the logits, and the gradients
of hidden and weight. They are left to the BLAS. R·V logits are far more memory than anything else, so:

- the rows are taken in chunks, and no more than one chunk of logits exists at a time. A kernel of cross_entropy finds
  the losses and writes the gradient over the logits, a row after the other, so that memory reads and writes each once;
  the BLAS makes of it that chunk's part of the gradients;
- so the gradients are computed with the forward, where they will be needed: a backward that came later would have to
  multiply for the logits once more, a third more work. The backward multiplies them by what comes in: 2·V·H elements
  moved, one part in a hundred of the time, and none where that is one and nobody can go backward again, so that it may
  be done in place. In float16, for which the gradient of a mean over thousands of rows is too small a number, they are
  those of the sum, and never one;
- for reduction="none" each row is multiplied by its own number before rows are added up, so there nothing but two
  numbers per row are kept, and the backward multiplies for the logits again;
- nothing waits for the GPU, and where no gradient is wanted only the first product is made.
"""

from tilesmith.ops.linear_cross_entropy.operator import SPEC, linear_cross_entropy

__all__ = ["SPEC", "linear_cross_entropy"]
