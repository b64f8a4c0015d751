"""Triangle attention: attention along the rows or the columns of a grid of pairs, with the third edge as a bias.

For n residues it is n problems of attention of n queries with n keys, which share one bias: 4·n³·h·d flops forward and
10·n³·h·d backward for h heads of size d, while q, k, v and the output are 4·n²·h·d elements and the bias n²·h. So:

- the kernels are attention's own, of which a row or a column is a sequence. The ending node's transposition is a matter
  of strides: nothing is copied but the mask, a byte for each place;
- a batch of any size is one launch of each kernel: a sequence has its number in its member of the batch, and that has
  the bias;
- the bias is broadcast over the rows, and its gradient summed over them by programs that each own a tile of it;
- the gate is applied, and its gradient found, in one pass over the output.
"""

from tilesmith.ops.triangle_attention.operator import SPEC, triangle_attention

__all__ = ["SPEC", "triangle_attention"]
