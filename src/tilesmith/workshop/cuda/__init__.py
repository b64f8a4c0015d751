"""Checking a learner's CUDA file without a GPU: compiled as C++, run under sanitizers, its memory accesses counted.

The C++ headers beside these files stand in for CUDA's runtime.

Files, in reading order:

- `source_rules.py`: what nvcc refuses and a C++ compiler accepts.
- `compiler_messages.py`: a compiler's first error, in a learner's words.
- `check.py`: all stages for a `.cu` file.
- `access_counts.py`: sectors, bank conflicts and copies of a program, counted per warp.
"""
