"""Triangle multiplication, the pair update of AlphaFold 2 (its supplement's algorithms 11 and 12):

zn = norm(z),    a, b = mask · σ(gate(zn)) · projection(zn),    x_ij = Σ_k a_ik · b_jk (outgoing) or Σ_k a_ki · b_kj,
y = σ(output gate(zn)) · output(norm(x)).

For n residues and c channels throughout, forward does 2·n²·c·6c flops in projections and 2·n³·c in the product, and
need move 2·n²·c elements. At n = 256 and c = 128 in bf16 that is 17 GFLOP on 34 MB, so it pays to keep intermediate
results on the chip, but not to compute them several times over:

- one kernel reads z once, norms it, and writes a and b once, masked and gated, channel by channel as n × n matrices,
  which is how the product wants them;
- the product is a batch of matrix products, one for each channel, by matmul's kernels;
- one kernel reads x and z, norms both, and writes y: output norm, projection and gate never lie in memory.

That moves about 9·n²·c elements. The backward computes norms, projections and gates again from z, a, b and x, which the
forward leaves behind, in two kernels around the gradient of the product; what they leave in memory besides is what the
gradients of the weights, which are products of large matrices, are made of. Nothing is added to from two sides: the
gradients are the same to the bit at every run.

Half precision: sums over 1024 residues may be beyond it though the operands are not. x is held in single precision
there; in bf16, which reaches as far as single precision, and in double it is held as it is. The norm that follows
brings it back into range.

With `chunk`, a few rows of y are computed at a time, from other operators, in less memory: see `chunked`. Where single
precision must be exact, and there is much of it, products are made as a whole: see `exact`.
"""

from tilesmith.ops.triangle_multiply.operator import triangle_multiply
from tilesmith.ops.triangle_multiply.spec import SPEC

__all__ = ["SPEC", "triangle_multiply"]
