"""Tiny LLaMA: a decoder with RMSNorm, rotary embedding, grouped queries, SwiGLU and a tied embedding.

Files, in reading order:

- `model.py`: the model, written once.
- `parts.py`: the parts that a version chooses, and their PyTorch implementations (v1 and v2).
- `tilesmith_parts.py`: the same parts on Tilesmith's operators (v3 and v4).
- `fused_layer.py`: a layer of v3 as one autograd node.
- `blocks.py`: the attention and feed-forward blocks of that layer, with their gradients.
"""

from __future__ import annotations

from tilesmith.models.llama.model import Config, Llama
from tilesmith.models.llama.parts import V1, V2, Parts
from tilesmith.models.versions import Version

VERSION_NAMES = ("v1", "v2", "v3", "v4")

__all__ = ["VERSION_NAMES", "Config", "Llama", "Parts", "version"]


def version(name: str) -> Version[Parts]:
    """Return the version of this name. v1 and v2 need only PyTorch, so Triton is imported only for the others."""
    if name not in VERSION_NAMES:
        raise ValueError(f"version is {name!r}, but must be one of {', '.join(VERSION_NAMES)}")
    if name in ("v1", "v2"):
        return V1 if name == "v1" else V2
    from tilesmith.models.llama.tilesmith_parts import V3, V4

    return V3 if name == "v3" else V4
