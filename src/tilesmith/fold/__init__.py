"""The three functions that AlphaFold-style models call in NVIDIA's cuEquivariance, on Tilesmith's operators.

Signatures, shapes, masks and return values are those of `cuequivariance_torch`, so a model needs one changed line:
`import tilesmith.fold as cuequivariance_torch`. `install()` serves models whose code must stay as it is.

Files, in reading order:

- `arguments.py`: checks of the functions' arguments.
- `attention.py`: triangle_attention, and mask_to_kv_lengths.
- `multiplication.py`: triangle_multiplicative_update, and TriMulPrecision.
- `pair_bias.py`: attention_pair_bias.
- `install.py`: install and uninstall: the package under cuEquivariance's name.
- `primitives/`: the same functions under the path that models import them from.
"""

from tilesmith.fold.attention import mask_to_kv_lengths, triangle_attention
from tilesmith.fold.install import install, uninstall
from tilesmith.fold.multiplication import TriMulPrecision, triangle_multiplicative_update
from tilesmith.fold.pair_bias import attention_pair_bias

__all__ = [
    "TriMulPrecision",
    "attention_pair_bias",
    "install",
    "mask_to_kv_lengths",
    "triangle_attention",
    "triangle_multiplicative_update",
    "uninstall",
]
