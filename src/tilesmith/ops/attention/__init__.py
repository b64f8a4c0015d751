"""Attention: o = softmax(scale · q·kᵀ + bias) · v, over the keys that each query may see.

For S queries, T keys and heads of D elements the forward does 4·S·T·D flops and needs to move 2·(S + T)·D elements:
compute-bound from a few hundred keys on, as long as the S×T matrix of scores never reaches memory. The backward does
10·S·T·D. So:

- `forward.py`: scores exist as one tile at a time, and the weights are worked out while the tiles go by. Read it first;
- `decode.py`: few queries and many keys are memory-bound instead, and want k and v read once by a full GPU;
- `backward.py`, `bias_gradient.py`: the weights are computed again from one number kept per query. Every sum is added
  up by a single program, in a fixed order. `gradient_tiles.py` chooses their tiles;
- `chunked_backward.py`: where sequences of a grid share a bias, they are computed again once, not three times, and the
  gradients of scores lie in memory, chunk by chunk (`score_gradients.py`);
- `planes.py`: single precision that must be exact, as three numbers of bf16;
- `tiles.py`, `scores.py`: what all of these do on the device; `problem.py`: what they need to be told;
- `reference.py`: what all of it means.
"""

from tilesmith.ops.attention.operator import attention
from tilesmith.ops.attention.spec import SPEC

__all__ = ["SPEC", "attention"]
