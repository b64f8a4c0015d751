"""Mutation testing of exercises: a model solution with one mistake must fail its check, or compute the same.

Files, in reading order:

- `mutant.py`: a source with one change, and its name.
- `triton_mutants.py`: the mutants of a Triton file, made in its syntax tree.
- `cuda_mutants.py`: the mutants of a CUDA file, made in its text.
- `known_equivalents.py`: the mutants that an author has listed as equivalent, with reasons.
- `probing.py`: tells whether a mutant that passes its check computes the same as the solution on other sizes.
- `trying.py`: the fate of one mutant.
- `survivors.py`: tries all mutants of exercises, in child processes.
"""
