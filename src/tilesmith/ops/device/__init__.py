"""Device code that several operators share.

Files, in reading order:

- `elementwise.py`: tiles, grids and configurations of elementwise kernels.
- `activations.py`: SiLU and GELU with their slopes.
- `runs.py`: walking dimensions of any strides in runs of neighbouring elements.
- `aligned_rows.py`: rows of any width in 16-byte vectors.
- `row_chunks.py`: one row in registers, as chunks of one vector a thread.
- `partial_sums.py`: sums over rows in two kernels, without atomics.
- `channels.py`: parameters, partial sums and a norm's gradient over rows of channels.
- `overlapped.py`: launches that start while the launch before them still runs.
- `teams.py`: programs that share one row and wait for each other.
- `norms/`: what the norms share.
- `bf16x3.py`: exact single precision on tensor cores, as three bf16 numbers.
- `hopper.py`: warpgroups, mbarriers, and whether a plan may use Hopper kernels.
- `step_times.py`: how long tiles of Hopper kernels take, by which they are chosen.
- `constants.py`: mathematical constants.
- `images/`: windows over images, for pooling and convolution.
"""
