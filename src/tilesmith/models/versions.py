"""What a version of a model is: the parts it computes with, and how a training step runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Parts = TypeVar("Parts")

Optimizer = Literal["plain", "fused", "tilesmith"]
"""AdamW as PyTorch has it, in few launches of PyTorch's own, or in one of ours."""

Captured = Literal["nothing", "passes", "step"]
"""What of a training step is one CUDA graph: forward and backward, or all of it, the optimiser too."""


@dataclass(frozen=True)
class Version(Generic[Parts]):
    """All versions of a model share its parameters and its meaning; they differ in what computes."""

    name: str
    about: str
    parts: Parts
    optimizer: Optimizer = "plain"
    captured: Captured = "nothing"
    """What a training step captures, where there is a GPU, and replays."""
