"""Optimisers: torch's own, with every parameter of a model updated in one launch."""

from tilesmith.optim.adamw import AdamW

__all__ = ["AdamW"]
