"""Triangle multiplication, the pair update of AlphaFold 2 (its supplement's algorithms 11 and 12):

zn = norm(z),    a, b = mask · σ(gate(zn)) · projection(zn),    x_ij = Σ_k a_ik · b_jk (outgoing) or Σ_k a_ki · b_kj,
y = σ(output gate(zn)) · output(norm(x)).

For n residues and c channels throughout, the forward does 2·n²·c·6c flops in projections and 2·n³·c in the product, and
must move 2·n²·c elements. At n = 256 and c = 128 in bf16 that is 17 GFLOP on 34 MB. So intermediate results should stay
on the chip, but not at the price of computing them several times:

- one kernel reads z once, norms it, and writes a and b once, masked and gated, as an n × n matrix for each channel: the
  layout that the product needs;
- the product is a batch of GEMMs, one for each channel, by matmul's kernels;
- one kernel reads x and z, norms both, and writes y: output norm, projection and gate are never in memory.

That moves about 9·n²·c elements. The forward keeps a, b and x. The backward recomputes norms, projections and gates in
two kernels around the gradient of the product. These kernels also write the operands of the weights' gradients, which
are GEMMs of large matrices. No kernel uses atomic additions: gradients are the same to the bit at every run.

float16: sums over 1024 residues may overflow though the operands do not. There x is float32. With bf16, which has the
range of float32, and with float64, x has the dtype of z. The norm of x brings it back into range.

Which kernels compute a call:

- `chunk` is given: `chunked.py`, from other operators, in less memory;
- single precision must be exact and z is large: `exact/`, separate GEMMs with elementwise passes between them;
- otherwise `fused/operators.py`, by the first of its FORMS that suits: Hopper's kernels, else the portable ones.

Files, in reading order:

- `parameters.py`: the weights and biases as one named tuple, and their gradients.
- `reference.py`: the meaning, in plain PyTorch.
- `operator.py`: what users call, its checks, which kernels compute a call, and its gradient.
- `problem.py`: one call as its planners see it, and the GEMMs over residues.
- `fused/`: the fused kernels for every GPU, and the list of forms.
- `hopper/`: the fused kernels for Hopper GPUs.
- `exact/`: single precision that must be exact.
- `chunked.py`: some rows of the result at a time, to save memory.
- `spec.py`: cases, cost and rivals.
"""

from tilesmith.ops.triangle_multiply.operator import triangle_multiply
from tilesmith.ops.triangle_multiply.spec import SPEC

__all__ = ["SPEC", "triangle_multiply"]
