"""Triangle attention: attention along the rows or the columns of a grid of pairs, with the third edge as a bias.

n residues make n problems of attention, each of n queries with n keys, that share one bias. For h heads of size d the
forward does 4·n³·h·d flops and the backward 10·n³·h·d. q, k, v and the output have n²·h·d elements each, the bias n²·h.

- The kernels are attention's own: a row or a column is a sequence. The ending node's transposition is a matter of
  strides. Only the mask is copied, one byte per pair.
- A batch of any size is one launch of each kernel. A sequence has two numbers: its member of the batch, which has the
  bias, and its number in that member.
- The bias broadcasts over the rows. Programs that each own a tile of the bias sum its gradient over the rows.
- One pass over the output applies the gate, and one pass computes its gradient.

Files, in reading order:

- `operator.py`: what users call, its meaning, checks and spec.
- `grid.py`: attention along one side of a grid, shared with the attentions over an alignment.
- `grid_cases.py`: the sizes, costs and rivals of all attentions over a grid.
"""

from tilesmith.ops.triangle_attention.operator import SPEC, triangle_attention

__all__ = ["SPEC", "triangle_attention"]
