"""Torch modules over the operators, with the constructors and state dicts of torch's own: either loads the other's."""

from tilesmith.nn.activations import SiLU, Softmax, SwiGLU
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
from tilesmith.nn.linear import Linear
from tilesmith.nn.losses import CrossEntropyLoss, LinearCrossEntropyLoss
from tilesmith.nn.norms import AddRMSNorm, LayerNorm, RMSNorm
from tilesmith.nn.space import AvgPool2d, Conv2d, MaxPool2d

__all__ = [
    "AddRMSNorm",
    "Attention",
    "AvgPool2d",
    "Conv2d",
    "CrossEntropyLoss",
    "EvoformerBlock",
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
    "Transition",
    "TriangleAttention",
    "TriangleMultiplication",
]
