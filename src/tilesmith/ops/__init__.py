"""The operators. Each module here that defines a SPEC is one; finding them is all this does."""

from __future__ import annotations

import importlib
import pkgutil

from tilesmith.ops.runtime.dispatch import configured, use
from tilesmith.spec import Spec, of_module


def _discovered() -> dict[str, Spec]:
    found = {}
    for entry in pkgutil.iter_modules(__path__, f"{__name__}."):
        if entry.name != f"{__name__}.runtime":
            spec = of_module(importlib.import_module(entry.name), entry.name)
            found[spec.name] = spec
    return dict(sorted(found.items()))


SPECS = _discovered()
"""Every operator's spec, by name."""

globals().update({name: spec.op for name, spec in SPECS.items()})

__all__ = ["SPECS", "configured", "use", *SPECS]  # pyright: ignore  # the operators are found, not listed
