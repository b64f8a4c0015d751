"""Known GPUs as data, and what one multiprocessor holds of a kernel.

Files, in reading order:

- `devices.py`: known GPUs, from `devices.json`: limits of the architecture and datasheet figures.
- `occupancy.py`: how many warps of a kernel fit on a multiprocessor.
- `rates.py`: rates of matrix products in single precision.
- `instruction_costs.py`: cycles and latencies of PTX instructions on Hopper.
"""
