"""The update in exact single precision: separate GEMMs with elementwise passes between them.

Files, in reading order:

- `update.py`: the forward and backward as torch operators, composed of GEMMs and passes.
- `passes.py`: the passes as torch operators, and their launches.
- `pass_kernels.py`: the kernels of the passes.
"""
