"""The lab: is a kernel correct, why is it slow, how far is it from the limit? It works on anyone's kernels.

Files, in reading order:

- `check.py`: compares an operator and its gradients with the reference.
- `check_context.py`: the settings under which an operator is checked.
- `comparison.py`: the rule for how large an error may be.
- `store_log.py`: remembers which program stored which element.
- `judge/`: judges candidates that nobody trusts.
- `inspect/`: explains what a kernel does, without a GPU.
- `transactions.py`: counts the memory sectors of a launch.
- `bench/`: measures an operator beside its rivals and against the limits of the device.
- `profile/`: runs a command under a profiler.
- `report/`: terminal output and HTML pages.
- `doc_tables/`: the tables of README and docs.
"""

from tilesmith.lab.check import Result, check
from tilesmith.lab.inspect import (
    Inspection,
    assert_coalesced,
    assert_in_bounds,
    assert_loads_per_element,
    inspect,
)
from tilesmith.lab.judge import judge

__all__ = [
    "Inspection",
    "Result",
    "assert_coalesced",
    "assert_in_bounds",
    "assert_loads_per_element",
    "check",
    "inspect",
    "judge",
]
