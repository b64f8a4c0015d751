"""QK-norm and rotary positions: each head of q and k is normed, scaled and rotated.

Files, in reading order:

- `operator.py`: what the operator means, its kernels, what users call, its gradient and its spec.
"""

from tilesmith.ops.rms_norm_rope.operator import SPEC, apart, reference, rms_norm_rope

__all__ = ["SPEC", "apart", "reference", "rms_norm_rope"]
