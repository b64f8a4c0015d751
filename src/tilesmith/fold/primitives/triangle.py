"""The functions of `tilesmith.fold` under the path of `cuequivariance_torch.primitives.triangle`."""

from tilesmith.fold.attention import mask_to_kv_lengths, triangle_attention
from tilesmith.fold.multiplication import TriMulPrecision, triangle_multiplicative_update
from tilesmith.fold.pair_bias import attention_pair_bias

__all__ = [
    "TriMulPrecision",
    "attention_pair_bias",
    "mask_to_kv_lengths",
    "triangle_attention",
    "triangle_multiplicative_update",
]
