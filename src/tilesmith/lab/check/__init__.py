"""Compare an operator and its gradients with the reference, over cases, dtypes and layouts.

Files, in reading order:

- `trial.py`: one combination of case, dtype and layout, and one comparison of it.
- `choosing.py`: which trials a spec gets, and which of its cases the interpreter can run.
- `context.py`: the settings under which an operator is checked.
- `preparing.py`: makes the inputs of a trial and what they must give.
- `further_calls.py`: calls again with other numbers, without gradients, and without the kernels.
- `running.py`: runs a trial: outputs, gradients, unchanged inputs, races.
- `launches.py`: compiles what a check launches, and tries each configuration of autotuners.
- `check_call.py`: `check`, the function that users call.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilesmith.lab.check.choosing import input_bytes, interpretable, trials
    from tilesmith.lab.check.further_calls import kernels_matter
    from tilesmith.lab.check.running import run
    from tilesmith.lab.check.trial import Result, Trial

__all__ = ["Result", "Trial", "input_bytes", "interpretable", "kernels_matter", "run", "trials"]

_HOMES = {"Result": "trial", "Trial": "trial", "kernels_matter": "further_calls", "run": "running"}


def __getattr__(name: str) -> Any:
    """Import a name on first use: the judge's processes need `context` alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'choosing')}"), name)
