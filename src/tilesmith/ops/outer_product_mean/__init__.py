"""The mean over sequences of the outer product of two sets of channels, projected: an alignment's information on pairs.

With n residues, s sequences, c channels on each side and z in the result, the outer products are n²·c² numbers: a
thousand times the input or output at c = 32. The forward does 2·s·n²·c² + 2·n²·c²·z flops, and must move only
2·s·n·c + n²·z elements, if no outer product leaves the chip:

- one pass lays out the operands along the sequences, with zeros for masked elements;
- a program takes a tile of pairs, and one channel of a at a time. The outer products with all of b's channels are a
  small matrix product, and its result is the operand of the projection;
- sums are divided before they are rounded, so that float16 holds every mean that it can represent.

The backward needs the outer products and their gradients in memory, for `chunk` residues at a time: four GEMMs of large
matrices for each chunk, by `matmul.internal`.

In exact single precision the forward with a weight runs GEMMs too, by `separate_products_forward.py`. For few
sequences `few_sequences_forward.py` and `few_sequences_backward.py` multiply in another order, without outer products,
with fewer flops.

Files, in reading order:

- `operator.py`: what users call, its meaning, checks, gradient and spec.
- `forward.py`: the forward kernels and their tiles.
- `backward.py`: the backward, composed of GEMMs and passes.
- `backward_passes.py`: the elementwise passes of the backward.
- `inverse_counts.py`: the factor of each pair, 1 / (eps + count).
- `separate_products_forward.py`: the forward in exact single precision with a weight, with outer products in memory.
- `few_sequences_forward.py`: the forward without outer products.
- `few_sequences_backward.py`: the backward without outer products.
"""

from tilesmith.ops.outer_product_mean.operator import SPEC, outer_product_mean

__all__ = ["SPEC", "outer_product_mean"]
