"""Tasks in the formats of others, judged as they are.

Files, in reading order:

- `trusted_source.py`: run a task's file on this machine, with or without a GPU.
- `splitting.py`: a file with a SPEC as a task and a candidate.
- `kernelbench.py`: KernelBench's problems: `Model`, `get_inputs`, `get_init_inputs`, and `ModelNew`.
- `gpu_mode.py`: GPU MODE's reference kernels: `reference.py`, `task.yml`, and `custom_kernel`.
- `opening.py`: the task at a path, whatever its format.
"""
