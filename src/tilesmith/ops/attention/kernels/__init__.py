"""The attention kernels in Triton: they run on every GPU and in the interpreter.

Files, in reading order:

- `forward.py`: the portable forward, with an online softmax. Computes every problem.
- `backward.py`: the portable backward: dq, dk and dv. Computes every problem.
- `group_parts.py`: splits the query heads of a group over programs.
- `backward_tiles.py`: the default tiles of the portable backward.
- `bias_gradient.py`: the gradient of the bias.
- `aligned_bias.py`: a copy of a shared bias that TMA can load.
- `fully_masked.py`: the mean of v for sequences of a grid whose keys are all masked.
- `decode.py`: the forward for few queries and many keys.
- `decode_one_row.py`: the same for one query to each head of keys, without tensor cores.
- `decode_backward.py`: the backward for few queries and many keys.
- `short.py`: forward and backward for up to 64 queries and keys.
- `delta.py`: δ in a kernel of its own.
- `wide_heads.py`: forward and backward for heads of more than 128 elements, where TMA loads tiles.
- `backward_by_chunks.py`: the backward for sequences that share a bias.
"""
