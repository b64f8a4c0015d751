"""Torch modules over the operators, with the constructors and state dicts of torch's own: either loads the other's."""

from tilesmith.nn.activations import SiLU
from tilesmith.nn.norms import RMSNorm

__all__ = ["RMSNorm", "SiLU"]
