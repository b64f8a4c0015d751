"""Processes for code that the judge does not trust: confined, limited, and heard only through plain messages.

Files, in reading order:

- `limits.py`: limits of time, memory, files and processes.
- `sandbox.py`: what a child process may no longer do: network, files, other processes.
- `seccomp.py`: the system calls that a confined child may not make.
- `arena.py`: memory that the judge and a child share.
- `nursery.py`: the process that has imported PyTorch and Triton, and forks children from itself.
- `children.py`: starting children, asking them, and the reason why one ended.
"""
