"""The lab: is a kernel correct, why is it slow, how far is it from the limit? It works on anyone's kernels.

Files, in reading order:

- `check.py`: compares an operator and its gradients with the reference.
- `check_context.py`: the settings under which an operator is checked.
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
- `check_call.py`: `ts.lab.check`.
- `notebook.py`: `%%check` and `%%inspect` for Jupyter.
- `bench/`: measures an operator beside its rivals and against the limits of the device.
- `profile/`: runs a command under a profiler.
- `schemas/`: JSON Schema files of what the commands write.
- `report/`: terminal output and HTML pages.
- `doc_tables/`: the tables of README and docs.
"""

from tilesmith.lab.bench.bench_call import Benchmark, bench
from tilesmith.lab.check import Result
from tilesmith.lab.check_call import Checked, check
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
