"""The fused update: few kernels compute everything and keep intermediate results on the chip.

Files, in reading order:

- `operators.py`: the torch operators, and the forms that may compute them.
- `rows.py`: device code for rows of pairs: loads, norms, projections, stores.
- `forward.py`: the portable forward kernels.
- `backward.py`: the portable backward kernels.
- `config.py`: the tiles of the portable kernels.
"""
