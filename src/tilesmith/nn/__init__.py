"""Torch modules on the operators, with torch's constructors and interchangeable state dicts.

Files, in reading order:

- `arguments.py`: what each argument of a constructor must be.
- `linear.py`: Linear.
- `norms.py`: RMSNorm, AddRMSNorm, LayerNorm.
- `activations.py`: SiLU, GELU, Softmax, and the SwiGLU and GeGLU blocks.
- `attention.py`: RotaryEmbedding, and Attention with its projections.
- `losses.py`: CrossEntropyLoss, LinearCrossEntropyLoss.
- `images.py`: Conv2d, MaxPool2d, AvgPool2d.
- `evoformer.py`: the parts of the Evoformer and its block.
- `pairformer.py`: AlphaFold 3's attention with pair bias, and its SwiGLU transition.
- `evoformer_reference.py`: the same block in plain PyTorch.
"""

from tilesmith.nn.activations import GELU, GeGLU, SiLU, Softmax, SwiGLU
from tilesmith.nn.attention import Attention, RotaryEmbedding
from tilesmith.nn.evoformer import (
    EvoformerBlock,
    MSAColumnAttention,
    MSARowAttentionWithPairBias,
    OuterProductMean,
    Transition,
    TriangleAttention,
    TriangleMultiplication,
)
from tilesmith.nn.images import AvgPool2d, Conv2d, MaxPool2d
from tilesmith.nn.linear import Linear
from tilesmith.nn.losses import CrossEntropyLoss, LinearCrossEntropyLoss
from tilesmith.nn.norms import AddRMSNorm, LayerNorm, RMSNorm
from tilesmith.nn.pairformer import AttentionPairBias, SwiGLUTransition

__all__ = [
    "GELU",
    "AddRMSNorm",
    "Attention",
    "AttentionPairBias",
    "AvgPool2d",
    "Conv2d",
    "CrossEntropyLoss",
    "EvoformerBlock",
    "GeGLU",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "MSAColumnAttention",
    "MSARowAttentionWithPairBias",
    "MaxPool2d",
    "OuterProductMean",
    "RMSNorm",
    "RotaryEmbedding",
    "SiLU",
    "Softmax",
    "SwiGLU",
    "SwiGLUTransition",
    "Transition",
    "TriangleAttention",
    "TriangleMultiplication",
]
