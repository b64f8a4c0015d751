"""The portable kernels of a product.

Files, in reading order:

- `pointers.py`: the GEMM by plain pointers.
- `tma.py`: the GEMM by TMA.
- `realign.py`: copies matrices into memory that TMA can walk.
- `tiles.py`: which tile a program computes.
- `epilogue.py`: what happens to a finished tile.
- `bf16x3_passes.py`: the passes of an exact product that was split in memory.
- `split_bf16x3.py`: splits float32 into bf16x3 in memory.
- `split_k_sum.py`: adds the partial sums of a split-K.
"""
