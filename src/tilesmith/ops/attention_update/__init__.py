"""What a part of the Evoformer does that attends over a grid, all of it: norm, projections, attention, gate, output.

xn = norm(x),    y = output(σ(gate(xn)) · attention(queries(xn), keys(xn), values(xn))),

along the rows or the columns of x, with a bias for each head that may be made of xn itself, as in triangle attention.
For p places of c channels, projections do 2·p·5c² flops forward. The products are `matmul.inside`'s, attention is that
of `triangle_attention`, and between them is as little as can be:

- queries, keys, values and gate are one product, and are read where its result lies;
- the backward puts their gradients side by side in the pass that computes the gate's, and two products do for all four;
- a pass that norms makes the biases too, laid out by heads; its backward has their weight's gradient with the norm's;
- columns are summed, for the gradients of vectors, by passes that go over them anyway.
"""

from tilesmith.ops.attention_update.operator import SPEC, attention_update

__all__ = ["SPEC", "attention_update"]
