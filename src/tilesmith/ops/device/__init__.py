"""Device code that several operators share.

Files, in reading order:

- `elementwise.py`: tiles, grids and configurations of elementwise kernels.
- `activations.py`: SiLU and GELU with their slopes.
- `runs.py`: walking dimensions of any strides in runs of neighbouring elements.
- `aligned_rows.py`: rows of any width in 16-byte vectors.
- `row_chunks.py`: one row in registers, as chunks of one vector a thread.
- `partial_sums.py`: sums over rows in two kernels, without atomics.
- `channels.py`: parameters, partial sums and a norm's gradient over rows of channels.
- `norm_rows.py`: tiles of rows for the norms.
- `norm_forward.py`: the forms of a norm's forward.
- `norm_backward.py`: the forms of a norm's backward.
- `norm_any_width.py`: the norms of rows of any width, from any address on, both directions.
- `norm_any_width_kernels.py`: their kernels.
- `bf16x3.py`: exact single precision on tensor cores, as three bf16 numbers.
- `hopper.py`: warpgroups, mbarriers, and whether a plan may use Hopper kernels.
- `constants.py`: mathematical constants.
- `images/`: windows over images, for pooling and convolution.
"""
