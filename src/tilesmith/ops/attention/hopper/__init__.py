"""The attention kernels in Gluon, for long sequences on Hopper: warp specialisation, mbarriers, wgmma.

Files, in reading order:

- `problems.py`: the problems that both kernels take.
- `head_tiles.py`: heads as one tile or two, in both kernels.
- `forward.py`: the forward kernel.
- `softmax_weights.py`: from a tile of scores to a tile of weights, in the forward kernel.
- `forward_tiles.py`: its tiles.
- `forward_plan.py`: when to launch it, and the order of its tiles.
- `backward.py`: the backward kernel, with five products.
- `backward_warps.py`: its warps that load, wait for the turn to add dq, add and store.
- `dq_sums.py`: sums of dq in memory, in the backward kernel.
- `backward_plan.py`: when to launch the backward kernel, and the order of its programs.
"""
