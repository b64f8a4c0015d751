"""Convolution: y[n, k, p, q] = Σ over c, r, s of x[n, c, p·stride − padding + r·dilation, …] · w[k, c, r, s] + b[k].

Forward does 2·N·P·Q·K·C·R·S flops on N·C·H·W + N·K·P·Q elements: with some dozens of channels compute-bound, so tensor
cores do it, as a matrix product whose first matrix, the windows, is never written down. Backward does twice the flops:
the input's gradient is the same product the other way around, the weight's is one over all positions.

- Channels are what is added up in blocks, so they should lie together. Images and weights of 16 channels and more that
  do not have them last in memory are copied so first, by the transpose kernel: four bytes moved for each byte of bf16
  image, where reading channels one by one would take several times as long.
- With fewer channels than that, a window's elements and channels are numbered through, and no copy is needed.
- Where every output comes of a channel of its own, there is no matrix product and nothing but memory to wait for.
- Everything is gathered: no atomics, so results are the same at every run.
"""

from tilesmith.ops.conv2d.operator import SPEC, conv2d

__all__ = ["SPEC", "conv2d"]
