"""What a version of a model is: the parts it computes with, and how a training step runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Parts = TypeVar("Parts")


@dataclass(frozen=True)
class Version(Generic[Parts]):
    """All versions of a model share its parameters and its meaning; they differ in what computes."""

    name: str
    about: str
    parts: Parts
    fused_optimizer: bool = False
    captured: bool = False
    """Whether a training step is captured in a CUDA graph, where there is a GPU, and replayed."""
