"""The figures of the exercises' pages, drawn by code.

Files, in reading order:

- `drawing.py`: the drawing library: shapes as SVG, and figures with steps.
- `vectors.py`: programs, blocks, masks, strides and tiles.
- `rows.py`: norms, softmax and other work on rows.
- `counting.py`: scans, histograms, selections and sparse rows.
- `training.py`: gradients and what they need, grouped heads, occupancy.
- `memory.py`: sectors, lanes, transposes, banks and vector width.
- `products.py`: matrix products: tiles, order, pipelining, tuning.
- `quantised.py`: quantised numbers, and products with them.
- `attention.py`: attention, its causal form and its gradient.
- `space.py`: windows, convolution and the triangle.
- `tools.py`: measuring, tuning, debugging and graphs.
- `cuda.py`: threads, blocks, barriers and copies.
- `all_figures.py`: the figure of each exercise.
"""
