"""Measure one provider on one case.

Files, in reading order:

- `timed_calls.py`: the calls to time, on several sets of inputs.
- `timing.py`: device time, host time and wall time of these calls.
- `gpu_stopwatch.py`: CUDA graphs and events behind the timing.
- `correctness_gate.py`: refuses a time for a wrong result.
- `memory.py`: peak memory, and memory kept for the backward.
- `sensors.py`: clocks, power and throttling during a run.
"""
