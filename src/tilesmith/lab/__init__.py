"""The lab: is a kernel right, why is it slow, how far is it from the limit? It serves everyone's kernels alike."""

from tilesmith.lab.check import Result, check
from tilesmith.lab.inspect import (
    Inspection,
    assert_coalesced,
    assert_in_bounds,
    assert_loads_per_element,
    inspect,
)

__all__ = [
    "Inspection",
    "Result",
    "assert_coalesced",
    "assert_in_bounds",
    "assert_loads_per_element",
    "check",
    "inspect",
]
