"""Our operators in models that fold proteins: modules of Boltz, OpenFold, OpenFold3 and Protenix, found by structure.

Files, in reading order:

- `fold_model.py`: `fold`, the function that users call, and its report.
- `kinds.py`: the kinds of modules: the names of their layers in each project, and what they compute.
- `grid_attention.py`: what the kinds with attention along rows or columns compute.
- `pair_bias.py`: what the kinds with attention over residues compute.
- `recognising.py`: which kind a module is, tried on random numbers before it is replaced.
"""
