"""Models that train: each is written once, and its versions v1 to v4 are lists of parts over one state dict.

Files, in reading order:

- `versions.py`: what a version of a model is.
- `llama/`: Tiny LLaMA.
- `openfold/`: Tiny OpenFold.
- `small_embedding.py`: the embedding of a small table, which both models use.
"""
