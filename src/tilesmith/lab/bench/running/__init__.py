"""Run benchmark units.

Files, in reading order:

- `bench_units.py`: a unit, and the source of its spec.
- `measurer.py`: measures units on a GPU.
- `planned_launches.py`: the launches of a file's operator, compiled for another GPU.
- `predictor.py`: predicts units from a datasheet.
- `child_process.py`: runs the units of one spec in a child process.
- `run_jobs.py`: runs all jobs and gathers one result.
"""
