"""Matrix products: y = act(a·b + bias), for matrices, vectors and batches.

A product of M×K and K×N does 2·M·N·K flops on as few as M·K + K·N + M·N elements. From a few hundred rows on, the
tensor cores are the limit: operands must reach them without passing through registers, tiles must be large, and storing
one tile must overlap with loading the next. With few rows, memory is the limit: the larger operand must be read once,
at full bandwidth.

Several kernels compute the same product. `planning/choose.py` lists them as forms and asks them in order:

- Hopper loads operands by TMA; everything else, and any stride, goes by pointers.
- float32 is exact by default: bf16x3, three bf16 numbers per element and six products on tensor cores.
- Few tiles and much depth: split-K, where several programs share the depth of a tile and one kernel adds their sums.

Files, in reading order:

- `operator.py`: what users call, its checks, its gradient and its spec.
- `reference.py`: the meaning in plain PyTorch, and PyTorch's fastest way to it.
- `matrices.py`: operands of any number of dimensions as batches of matrices.
- `forward.py`: the product as a torch operator.
- `backward.py`: its gradients as a torch operator.
- `planning/`: which kernel computes a product, with which tiles.
- `kernels/`: the portable kernels, by pointers and by TMA.
- `hopper/`: kernels in Gluon that only Hopper runs.
- `internal/`: products for use inside other operators.
"""

from tilesmith.ops.matmul.operator import SPEC, matmul

__all__ = ["SPEC", "matmul"]
