"""QK-norm and rotary positions in one kernel: each head of q and k is normed (RMS), scaled and rotated.

Forward moves two elements per element of q and k (read, write). Norm and rotation apart move four. Backward moves three
(read dy and x, write dx); apart, five. Memory-bound on every GPU.

- One launch takes q and k. A row is one head at one position; rows of one position follow each other, so caches hold
  the tables.
- The backward computes the norm again. Each of its programs walks several tiles of rows and adds up its part of the
  weight's gradient; a second kernel adds the parts.

Files, in reading order:

- `operator.py`: what users call, its meaning, checks and spec.
- `kernels.py`: one kernel each way.
- `plans.py`: forward and backward as launches.
"""

from tilesmith.ops.rms_norm_rope.operator import SPEC, apart, reference, rms_norm_rope

__all__ = ["SPEC", "apart", "reference", "rms_norm_rope"]
