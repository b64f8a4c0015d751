"""SwiGLU: y = silu(gate) · up, the gate of a feed-forward block.

Files, in reading order:

- `operator.py`: what swiglu means, its kernels, what users call, its gradient and its spec.
- `gated_products.py`: the GEMMs of a gated feed-forward block with swiglu in their epilogue, for models and patches.
"""

from tilesmith.ops.swiglu.operator import SPEC, swiglu

__all__ = ["SPEC", "swiglu"]
