"""Cross entropy over the last dimension: loss = log Σ exp(x) − x[target], the mean over the rows that count.

With L bytes of logits the forward reads L and writes little, the backward reads L and writes L. Each element takes
about five flops. Memory-bound on every GPU, so:

- a row is read once for its maximum and its sum of exponentials together. Each thread keeps its own until the end;
- wide rows are read and written in whole vectors between their edges, whatever their width (`device/aligned_rows.py`);
- a block of a wide row is loaded while the block before it is summed up. Where rows are few, all run at once, or
  several programs share a row (`wide_rows.py`);
- the kernel that adds up the losses starts while the last rows are read (`device/overlapped.py`);
- the backward needs two numbers a row. So it computes the gradient element by element, in tiles of any shape, and waits
  for no row. The logits are never copied to single precision;
- the backward computes the gradient: 3 L are moved, whatever the incoming gradient. A forward that also wrote the
  gradient would move 2 L only where the incoming gradient is exactly one, and 4 L where the loss is scaled, weighted or
  divided by a number of accumulation steps. It would hold the gradient from the forward on. Its backward, which learns
  the factor on the GPU, would have to overwrite what a second backward needs.

Files, in reading order:

- `operator.py`: what users call, its meaning, gradient and spec.
- `loss.py`: the checks and the saved tensors that all losses share.
- `rows.py`: device code that the kernels share.
- `forward.py`: the loss of each row, and their sum or mean.
- `wide_rows.py`: the forward of wide rows, by one program or by several.
- `backward.py`: the gradient.
- `loss_and_gradient.py`: both in one kernel, for linear_cross_entropy.
"""

from tilesmith.ops.cross_entropy.operator import SPEC, cross_entropy

__all__ = ["SPEC", "cross_entropy"]
