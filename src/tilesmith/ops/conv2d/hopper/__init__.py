"""Convolution in half precision on Hopper: implicit GEMMs in Gluon, with TMA boxes, wgmma and warp specialisation.

Files, in reading order:

- `boxes.py`: positions as boxes that TMA loads and stores.
- `gather.py`: the kernel of the forward and the input gradient.
- `gather_plan.py`: its launch: which problems it takes, with which tiles.
- `weight_gradient.py`: the kernel of the weight gradient.
- `weight_gradient_plan.py`: its launch.
"""
