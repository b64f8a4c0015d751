"""Convolution: y[n, k, p, q] = Σ over c, r, s of x[n, c, p·stride − padding + r·dilation, …] · w[k, c, r, s] + b[k].

Forward does 2·N·P·Q·K·C·R·S flops on N·C·H·W + N·K·P·Q elements: compute-bound from some dozens of channels on. It is
an implicit GEMM on tensor cores: the matrix of windows is never written to memory. Backward does twice the flops: the
input's gradient is the same GEMM with the roles of images exchanged, the weight's gradient a GEMM over all positions.

- The GEMM sums blocks of channels, so channels should be last in memory. Images and weights of 16 channels and more
  that have another layout are first copied by the transpose kernel. The copy costs four bytes per byte of bf16 image;
  loading channels one by one takes several times as long.
- With fewer channels, taps and channels form one long dimension of the GEMM, and no copy is needed.
- A depthwise convolution has no GEMM and is memory-bound.
- All kernels gather. There are no atomics, so results are the same at every run.

Files, in reading order:

- `operator.py`: what users call, its checks, its gradient and its spec.
- `problem.py`: the sizes of a convolution, and copies to channels last.
- `forward.py`: forward and input gradient as launches.
- `gather.py`: one launch of the implicit GEMM, and its configuration.
- `pointers.py`: its portable kernel, which loads by pointers.
- `interleaved.py`: the input gradient of a strided convolution with few channels, in one GEMM.
- `weight_gradient.py`: the weight gradient's kernel and plan.
- `depthwise.py`: kernels and plans of depthwise convolution.
- `hopper/`: forward and both gradients in half precision on Hopper.
"""

from tilesmith.ops.conv2d.operator import SPEC, conv2d

__all__ = ["SPEC", "conv2d"]
