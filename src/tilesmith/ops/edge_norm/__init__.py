"""Edge norm: the layer norm of pairs, and from each normed pair a bias for every head of attention.

xn = layer_norm(x),    edges[head] = xn · edge_weight[head].

With c channels and h heads, the forward moves 2·c + h elements per pair (reads x, writes xn and the biases) and does
about (7 + 2·h)·c flops. The backward moves 3·c + h elements. Each is one pass over memory. A separate GEMM of h columns
and a transposition to [batch, heads, n, n], the layout that attention reads, would add two passes each way.

Files, in reading order:

- `operator.py`: what users call, its meaning, checks and spec.
- `kernels.py`: one kernel each way.
- `plans.py`: forward and backward as launches.
"""

from tilesmith.ops.edge_norm.operator import MOST_CHANNELS, SPEC, edge_norm, reference
from tilesmith.ops.edge_norm.plans import backward, forward

__all__ = ["MOST_CHANNELS", "SPEC", "backward", "edge_norm", "forward", "reference"]
