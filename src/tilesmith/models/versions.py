"""A version of a model: its parts, its optimiser, and what a CUDA graph captures of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Parts = TypeVar("Parts")

Optimizer = Literal["plain", "fused", "tilesmith"]
"""The AdamW: PyTorch's default, PyTorch's fused one, or ours."""

Captured = Literal["nothing", "passes", "step"]
"""The part of a training step in a CUDA graph: nothing, forward and backward, or the whole step."""


@dataclass(frozen=True)
class Version(Generic[Parts]):
    """All versions of a model have the same parameters and compute the same; they differ in their kernels."""

    name: str
    about: str
    parts: Parts
    optimizer: Optimizer = "plain"
    captured: Captured = "nothing"
    """Applies on a GPU only."""
