"""What models train on.

Files, in reading order:

- `tasks.py`: a model with its data: Tiny LLaMA on tokens, Tiny OpenFold on chains.
- `tokens.py`: tokens from a Markov chain of known entropy, or from the bytes of a file.
- `folding_chains.py`: synthetic alignments, and the residue distances that follow from them.
"""
