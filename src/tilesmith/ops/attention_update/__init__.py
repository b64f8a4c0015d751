"""Attention update: a residual branch of the Evoformer that attends over a grid, from norm to output projection.

xn = norm(x),    y = output(σ(gate(xn)) · attention(queries(xn), keys(xn), values(xn))),

along the rows or the columns of x. Each head has a bias, which may be computed from xn, as in triangle attention. For p
places of c channels the projections do 2·p·5c² flops forward. GEMMs come from `matmul.internal`, attention from
`triangle_attention`. Between them as little as possible touches memory:

- Queries, keys, values and gate are one GEMM. Attention and gate read its result in place.
- In the backward, the pass that computes the gate's gradient puts all four gradients side by side, so two GEMMs do for
  all four projections.
- The pass that computes the norm computes the biases too, laid out by heads. Its backward computes the gradient of
  their weight.
- The gradients of vectors are column sums, made by passes that read those columns anyway.

Files, in reading order:

- `operator.py`: what users call, its meaning, checks and spec.
- `update.py`: the forward and the backward, composed of kernels and GEMMs.
- `gate_passes.py`: the elementwise kernels between the projections and attention.
"""

from tilesmith.ops.attention_update.operator import SPEC, attention_update

__all__ = ["SPEC", "attention_update"]
