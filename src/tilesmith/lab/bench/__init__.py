"""Measure an operator beside its rivals, and compare it with the limits of the device.

Files, in reading order:

- `selection.py`: turns the user's choice into benchmark units.
- `sweeps.py`: parses `--sweep` and lists its points.
- `running/`: runs units in child processes, measured on a GPU or predicted.
- `measuring/`: device time, host time, memory, clocks, and the check of every timed result.
- `roofline/`: limits of the device, the floor under a time, and the verdict.
- `bench_call.py`: `ts.lab.bench`, the function that users call.
- `result.py`: the rows and the JSON of a result.
- `survey/`: times cases drawn at random, and says how the times are distributed.
- `output/`: terminal tables, HTML page, charts, and comparison with an older result.
"""
