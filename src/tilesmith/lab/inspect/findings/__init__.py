"""Findings: what happens, where, how much it costs, and what to try.

Files, in reading order:

- `evidence.py`: the data that all rules read, and their thresholds.
- `correctness.py`: races, out-of-bounds accesses, uninitialised loads, missing masks, overlaps.
- `numbers.py`: low precision, infinities and NaN.
- `memory_access.py`: uncoalesced, narrow, repeated and masked accesses to global memory.
- `compiled_kernel.py`: compile errors, register spills, bank conflicts and occupancy.
- `all_findings.py`: runs all rules and sorts the findings.
"""
