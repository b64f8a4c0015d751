"""Tilesmith: write a Triton kernel; know that it is right, see why it is fast or slow, and ship it.

Files, in reading order:

- `arguments.py`: checks of the arguments of public functions.
- `spec.py`: what an operator declares: reference, cases, inputs, cost.
- `storage.py`: files that are written atomically and read with checks.
- `toolchain/`: Triton's interpreter, compiler and launcher; the only package that uses Triton's internals.
- `hardware/`: known GPUs, occupancy, and this machine.
- `ops/`: the operators and their kernels.
- `lab/`: checking, inspecting, benchmarking and profiling kernels, and reports.
- `nn/`: torch modules on the operators.
- `optim/`: optimisers.
- `fold/`: cuEquivariance's functions for AlphaFold-style models.
- `models/`: Tiny LLaMA and Tiny OpenFold in versions v1 to v4.
- `patch/`: the operators inside Hugging Face models.
- `training/`: training runs of the models.
- `workshop/`: exercises and their checks.
- `cli/`: the command line.
- `__main__.py`: `python -m tilesmith`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# The module that finds our operators by name, for `ts.lab`, which imports none of them.
OPERATOR_SOURCE = "tilesmith.cli.operator_source"

if TYPE_CHECKING:
    from tilesmith import fold, lab, nn, ops, optim, patch
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
    "fold",
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
    """Import a subpackage on first use: PyTorch takes seconds to import, and `tilesmith --help` does not need it."""
    if name in ("fold", "lab", "nn", "ops", "optim", "patch"):
        return importlib.import_module(f"tilesmith.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tilesmith' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
