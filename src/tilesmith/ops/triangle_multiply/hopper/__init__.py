"""The fused update for Hopper GPUs in Gluon: bf16, 128 channels and 128 hidden channels.

Files, in reading order:

- `ring.py`: tiles of pairs, the ring of TMA loads, staged TMA stores; how the kernels work.
- `layers.py`: weights in shared memory, projections, gates, masks and norms.
- `forward.py`: the forward's two kernels.
- `backward.py`: the backward's two kernels.
- `weight_gradients.py`: the gradients of all parameters.
- `launch.py`: which calls suit, descriptors, grids and arguments.
"""
