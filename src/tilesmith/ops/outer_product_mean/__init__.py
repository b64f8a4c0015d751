"""The mean over sequences of the outer product of two sets of channels, projected: what an alignment tells of pairs.

With n residues, s sequences, c channels on each side and z in the result, the outer products are n²·c² numbers, a
thousand times what goes in or comes out at c = 32. Forward does 2·s·n²·c² + 2·n²·c²·z flops and need move only
2·s·n·c + n²·z elements, if no outer product ever leaves the chip:

- the operands are laid out once along the sequences, with what is masked as zeros;
- a program then takes a tile of pairs, and one channel of a at a time: the outer products with all of b's channels are
  a small matrix product, whose result goes straight into the projection;
- sums are divided before they are rounded, so that half precision holds whatever it can hold of the mean.

The backward needs the outer products and their gradients in memory, and holds `chunk` residues' worth at a time. It is
four products of large matrices for each chunk, as `matmul.inside` makes them.

Few sequences in exact single precision are computed without outer products, forward (`few`) and backward
(`few_backward`): by products in another order, which are then less work.
"""

from tilesmith.ops.outer_product_mean.operator import SPEC, outer_product_mean

__all__ = ["SPEC", "outer_product_mean"]
