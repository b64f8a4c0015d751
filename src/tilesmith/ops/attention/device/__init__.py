"""Device code that several attention kernels share.

Files, in reading order:

- `tiles.py`: where a program works, loads and stores of tiles, who sees whom, dropout.
- `scores.py`: from products to scores, and in the backward to weights.
- `split_operands.py`: operands of exact single precision as three bf16 parts.
- `score_gradients.py`: ds in memory, for a chunk of sequences.
"""
