"""Tilesmith: write a Triton kernel; know that it is right, see why it is fast or slow, and ship it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilesmith import lab, nn, ops, optim, patch
    from tilesmith.ops.runtime.dispatch import debug, use
    from tilesmith.spec import Case, Cost, Layout, Spec, Work

__all__ = [
    "Case",
    "Cost",
    "Layout",
    "Spec",
    "Work",
    "__version__",
    "debug",
    "lab",
    "nn",
    "ops",
    "optim",
    "patch",
    "use",
]

_HOMES = dict.fromkeys(("Case", "Cost", "Layout", "Spec", "Work"), "tilesmith.spec")
_HOMES |= dict.fromkeys(("debug", "use"), "tilesmith.ops.runtime.dispatch")


def __getattr__(name: str) -> Any:
    """Load a face when it is first used: PyTorch takes seconds to import, and `tilesmith --help` needs none of it."""
    if name in ("lab", "nn", "ops", "optim", "patch"):
        return importlib.import_module(f"tilesmith.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tilesmith' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
