"""Modules of models that are not transformers' own which look like a part, for the report of what `patch` left."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import nn

from tilesmith.patch.rewriting import names_in

BLOCK = re.compile("mlp|feed_?forward|ffn|glu", re.IGNORECASE)
ATTENTION = re.compile("att(n|ention)", re.IGNORECASE)
ROTARY = re.compile("rotary|rope(?![a-z])", re.IGNORECASE)


def left_in(model: nn.Module) -> dict[str, str]:
    """Return for attention, rotation and loss which modules compute them; nothing for a part that no module has."""
    parts: dict[str, Callable[[nn.Module], bool]] = {
        "rotary": rotates,
        "loss": lambda module: any("cross_entropy" in name for name in _names(module)),
        "attention": _attends,
    }
    left = {}
    for part, has_part in parts.items():
        found = Counter(type(module).__name__ for module in _innermost(model, has_part))
        if found:
            modules = ", ".join(f"{kind} ({number})" for kind, number in found.items())
            left[part] = f"in {modules}; only models of transformers get this part"
    return left


def looks_like_block(module: nn.Module) -> bool:
    """Return whether a module looks like a feed-forward block, by its layers or by its name."""
    if _attends(module):
        return False
    layers = [one for one in module.children() if isinstance(one, nn.Linear)]
    if BLOCK.search(type(module).__name__):
        return bool(layers) or any(one.ndim > 1 for one in module.parameters(recurse=False))
    return len(layers) in (2, 3) and any(
        first.out_features in (last.in_features, 2 * last.in_features) and last.out_features == first.in_features
        for first, last in itertools.permutations(layers, 2)
    )


def _attends(module: nn.Module) -> bool:
    has_weights = any(one.ndim > 1 for one in module.parameters())
    named = ATTENTION.search(type(module).__name__) is not None and has_weights
    return named or "scaled_dot_product_attention" in _names(module)


def rotates(module: nn.Module) -> bool:
    """Return whether a module's names say that it rotates q and k by their positions."""
    return ROTARY.search(" ".join((type(module).__name__, *_names(module)))) is not None


def _innermost(model: nn.Module, has_part: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """Return the modules with a part that contain no other such module."""
    found = [module for module in model.modules() if has_part(module)]
    return [one for one in found if not any(other in found for other in one.modules() if other is not one)]


def _names(module: nn.Module) -> set[str]:
    forward: Any = type(module).forward
    return names_in(forward) if hasattr(forward, "__code__") else set()
