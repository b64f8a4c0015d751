"""Helpers for operators built from other operators.

Files, in reading order:

- `without_autocast.py`: computing with the dtypes given, whatever autocast says.
- `side_stream.py`: weight gradients on a second stream while a CUDA graph is captured.
- `laid_out.py`: results in the layout that every operator promises.
- `in_place.py`: kernels that write over one of their arguments.
"""
