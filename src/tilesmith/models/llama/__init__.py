"""Tiny LLaMA: a decoder with RMSNorm, rotary embedding, grouped queries, SwiGLU and a tied embedding.

model.py      the model, written once
parts.py      what a version may choose, and how plain PyTorch computes it: v1 and v2
kernels.py    the same parts on Tilesmith's operators: v3 and v4
whole.py      v3's layer as one node of PyTorch's graph, put together from blocks.py
"""

from __future__ import annotations

from tilesmith.models.llama.model import Config, Llama
from tilesmith.models.llama.parts import V1, V2, Parts
from tilesmith.models.versions import Version

VERSION_NAMES = ("v1", "v2", "v3", "v4")

__all__ = ["VERSION_NAMES", "Config", "Llama", "Parts", "version"]


def version(name: str) -> Version[Parts]:
    """The version by its name. v1 and v2 need nothing but PyTorch, so Triton is imported only for the others."""
    if name not in VERSION_NAMES:
        raise ValueError(f"version is {name!r}, but must be one of {', '.join(VERSION_NAMES)}")
    if name in ("v1", "v2"):
        return V1 if name == "v1" else V2
    from tilesmith.models.llama.kernels import V3, V4

    return V3 if name == "v3" else V4
