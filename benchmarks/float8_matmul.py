"""matmul of float8 beside PyTorch's own: `tilesmith bench benchmarks/float8_matmul.py --mode fwd` on a GPU that has it.

A spec of its own, since the operator's has what is differentiable.
"""

from tilesmith.ops.matmul.operator import cost, make_inputs, matmul
from tilesmith.ops.matmul.reference import FLOAT8, native, reference
from tilesmith.spec import CONTIGUOUS, Case, Spec

SPEC = Spec(
    name="matmul of float8",
    op=matmul,
    reference=reference,
    formula="y = a·b · scales",
    cases=[
        Case("tiny", m=16, n=32, k=48),
        Case("4096", m=4096, n=4096, k=4096),
        Case("8192", m=8192, n=8192, k=8192),
    ],
    make_inputs=make_inputs,
    cost=cost,
    dtypes=[FLOAT8],
    layouts=[CONTIGUOUS],
    differentiable=False,
    rivals={"torch": native},
)
