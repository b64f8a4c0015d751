"""The lab: is a kernel correct, why is it slow, how far is it from the limit? It works on anyone's kernels.

Files, in reading order:

- `check/`: compares an operator and its gradients with the reference.
- `reproducible_random.py`: random numbers that are the same on every machine.
- `expected.py`: what an operator must compute, exactly and with modelled rounding errors.
- `rounding_model.py`: models the rounding errors of a computation.
- `comparison.py`: the rule for how large an error may be.
- `conduct.py`: what an operator must do besides right values.
- `races.py`: finds races between programs.
- `isolated.py`: runs code in a child process, and says how it ended.
- `store_log.py`: remembers which program stored which element.
- `errors/`: what Triton's errors mean, for the workshop, `inspect` and `check`.
- `judge/`: judges candidates that nobody trusts.
- `inspect/`: explains what a kernel does, without a GPU.
- `transactions.py`: counts the memory sectors of a launch.
- `subjects.py`: finds the spec of what a user passes to `check` or `bench`.
- `notebook.py`: `%%check` and `%%inspect` for Jupyter.
- `bench/`: measures an operator beside its rivals and against the limits of the device.
- `profile/`: runs a command under a profiler.
- `schemas/`: JSON Schema files of what the commands write.
- `report/`: terminal output and HTML pages.
- `doc_tables/`: the tables of README and docs.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilesmith.lab.bench.bench_call import Benchmark, bench
    from tilesmith.lab.check import Result
    from tilesmith.lab.check.check_call import Checked, check
    from tilesmith.lab.inspect import (
        Inspection,
        assert_coalesced,
        assert_in_bounds,
        assert_loads_per_element,
        inspect,
    )
    from tilesmith.lab.judge import judge
    from tilesmith.lab.profile.profile_call import Profile, profile
    from tilesmith.lab.schemas import schema

__all__ = [
    "Benchmark",
    "Checked",
    "Inspection",
    "Profile",
    "Result",
    "assert_coalesced",
    "assert_in_bounds",
    "assert_loads_per_element",
    "bench",
    "check",
    "inspect",
    "judge",
    "profile",
    "schema",
]

_HOMES = dict.fromkeys(("Benchmark", "bench"), "tilesmith.lab.bench.bench_call")
_HOMES |= {"Result": "tilesmith.lab.check", "judge": "tilesmith.lab.judge", "schema": "tilesmith.lab.schemas"}
_HOMES |= dict.fromkeys(("Checked", "check"), "tilesmith.lab.check.check_call")
_HOMES |= dict.fromkeys(("Profile", "profile"), "tilesmith.lab.profile.profile_call")
_HOMES |= {name: "tilesmith.lab.inspect" for name in __all__ if name not in _HOMES}


class _Lab(ModuleType):
    """This package: its names are imported on first use, since PyTorch takes seconds to import.

    `bench`, `check`, `inspect`, `judge` and `profile` are functions and also submodules. Properties let the functions
    win whenever the submodules are imported.
    """

    def __dir__(self) -> list[str]:
        return [*__all__]


def _imported(name: str) -> property:
    def value(package: ModuleType) -> Any:
        return getattr(sys.modules.get(_HOMES[name]) or importlib.import_module(_HOMES[name]), name)

    return property(value, lambda package, submodule: None)


for _name in __all__:
    setattr(_Lab, _name, _imported(_name))
sys.modules[__name__].__class__ = _Lab
