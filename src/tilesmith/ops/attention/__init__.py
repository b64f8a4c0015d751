"""Attention: o = softmax(scale · q·kᵀ + bias) · v, over the keys that each query sees.

For S queries, T keys and heads of D elements the forward does 4·S·T·D flops and moves at least 2·(S + T)·D elements. It
is compute-bound from a few hundred keys on, if the S×T matrix of scores never reaches memory. The backward does
10·S·T·D flops. It computes the weights again from one number per query. Every sum has a fixed order, so gradients are
the same bits at every run.

Files, in reading order:

- `masks.py`: the masks that callers have, as the forms that kernels take.
- `reference.py`: the meaning, in plain PyTorch.
- `operator.py`: what users call, its checks and its gradient.
- `spec.py`: sizes that the operator is tried on, what it must cost, and what else a user could call.
- `problem.py`: one call as the planners see it.
- `forms.py`: all forms in the order in which the planner asks them.
- `device/`: device code that several kernels share.
- `kernels/`: the kernels in Triton, for every GPU and for the interpreter.
- `hopper/`: the kernels in Gluon, for Hopper.
"""

from tilesmith.ops.attention.operator import attention
from tilesmith.ops.attention.spec import SPEC

__all__ = ["SPEC", "attention"]
