"""Torch modules over the operators, with the constructors and state dicts of torch's own: either loads the other's."""

from tilesmith.nn.activations import SiLU, Softmax, SwiGLU
from tilesmith.nn.attention import RotaryEmbedding
from tilesmith.nn.linear import Linear
from tilesmith.nn.losses import CrossEntropyLoss, LinearCrossEntropyLoss
from tilesmith.nn.norms import AddRMSNorm, LayerNorm, RMSNorm

__all__ = [
    "AddRMSNorm",
    "CrossEntropyLoss",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "RMSNorm",
    "RotaryEmbedding",
    "SiLU",
    "Softmax",
    "SwiGLU",
]
