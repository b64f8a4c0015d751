"""Softmax along one dimension: y = exp(x − max x) / Σ exp(x − max x).

The forward moves two elements per output (read x, write y) and does about five flops on each, one of them an
exponential. The backward moves three (read y and dy, write dx) and does about four. Memory-bound on every GPU, so:

- A row is read from memory once. The row stays in the registers of one program, or of several that wait for each other,
  between its sum and its result. In the interpreter a wide row is read a second time.
- Accesses are 16 bytes wide at any width and offset of a row (`device/aligned_rows.py`).
- Few long rows are split over programs, so that they occupy the whole GPU.

Files, in reading order:

- `operator.py`: what softmax means, what users call, its gradient and its spec.
- `rows.py`: tensors as rows, the four forms of a kernel, and the sizes that choose between them.
- `row_places.py`: device functions that find the rows of a program in memory.
- `forward.py`: the forward kernels.
- `backward.py`: the backward kernels.
"""

from tilesmith.ops.softmax.operator import SPEC, softmax

__all__ = ["SPEC", "softmax"]
