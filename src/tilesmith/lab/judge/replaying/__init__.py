"""In a clean process: run a tape on inputs that the candidate never saw.

This process executes none of the candidate's Python. Kernels come from their text, checked against Triton's language,
and PyTorch's operators from a list. So what these modules report is what the kernels compute.

Files, in reading order:

- `operators.py`: which PyTorch operators only move data, fill memory, or compute.
- `memory.py`: the storages of a tape, and for each byte who wrote it.
- `tuner_trial.py`: a launch run once more before it counts, as autotuners do.
- `replay.py`: run a tape: outputs, faults of the kernels, who wrote what.
- `device.py`: run a tape on a GPU, without a trace.
- `kernel_facts.py`: what the compiler and the memory trace say about each kernel.
- `sessions.py`: what this process and the timing process share.
- `worker.py`: answer the judge's requests.
"""
