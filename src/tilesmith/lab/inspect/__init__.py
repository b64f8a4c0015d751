"""Explain what a Triton kernel does, without a GPU: its accesses, their coalescing, and what its binary uses.

found = inspect(lambda: my_operator(x, y))
found.kernel("my_kernel").accesses[0].efficiency

Files, in reading order:

- `inspect_call.py`: `inspect`, the function that users call.
- `model.py`: all results of an inspection, as plain data.
- `options.py`: what an inspection is asked to do.
- `configurations.py`: the configurations of an autotuner.
- `session.py`: replaces each launch by a trace, compilations and findings.
- `running/`: run a script in a child process, with stand-ins for a missing GPU.
- `tracing/`: record what the programs of a launch do in the interpreter.
- `metrics/`: figures from the trace and from the compiled binaries.
- `findings/`: rules that turn the figures into messages with advice.
- `output/`: terminal, JSON and HTML page.
- `assertions.py`: assertions for tests of kernels.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilesmith.lab.inspect.assertions import assert_coalesced, assert_in_bounds, assert_loads_per_element
    from tilesmith.lab.inspect.inspect_call import inspect
    from tilesmith.lab.inspect.model import Finding, Inspection, Kernel
    from tilesmith.lab.inspect.options import InspectError
    from tilesmith.lab.inspect.running.watch import inspection_of, watching

__all__ = [
    "Finding",
    "InspectError",
    "Inspection",
    "Kernel",
    "assert_coalesced",
    "assert_in_bounds",
    "assert_loads_per_element",
    "inspect",
    "inspection_of",
    "watching",
]

_HOMES = {"inspect": "inspect_call", "InspectError": "options"}
_HOMES |= dict.fromkeys(("Finding", "Inspection", "Kernel"), "model")
_HOMES |= dict.fromkeys(("inspection_of", "watching"), "running.watch")


def __getattr__(name: str) -> Any:
    """Import a name on first use: the command's own process needs neither PyTorch nor Triton."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'assertions')}"), name)
