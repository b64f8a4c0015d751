"""Kernels in Gluon that only Hopper runs: warp-specialised, with wgmma, TMA and mbarriers.

Files, in reading order:

- `sizes.py`: tiles, steps and registers of the half-precision kernels.
- `ring.py`: what half-precision kernels share: a ring of stages in shared memory, tiles, rounding.
- `half.py`: products in half precision: a batch, or a sum of up to three.
- `tiles.py`: products in half precision with tiles of many sizes.
- `gated_tiles.py`: what both kernels with SwiGLU share, and when they suit.
- `gated_forward.py`: two products and SwiGLU of their results.
- `gated_backward.py`: a product and the gradient of SwiGLU.
- `exact_shared.py`: exact float32, split into bf16x3 in shared memory.
- `exact_registers.py`: exact float32, split into bf16x3 in registers.
"""
