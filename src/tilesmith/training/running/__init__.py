"""A training run.

Files, in reading order:

- `options.py`: task and settings from the user's options and from a checkpoint.
- `run.py`: a run from its first step to its last.
- `step.py`: one step, run eagerly or captured in a CUDA graph.
- `prefetch.py`: batches that a thread prepares ahead of their steps.
- `gradient_guard.py`: stops a run in which a gradient is missing or not finite.
- `mixed_precision.py`: computing in bf16 with float32 parameters.
- `distributed.py`: several processes: DDP and FSDP2.
- `checkpoint.py`: checkpoint files.
- `phase_times.py`: times of forward, backward and optimiser.
- `profiling.py`: a few steps under PyTorch's profiler.
"""
