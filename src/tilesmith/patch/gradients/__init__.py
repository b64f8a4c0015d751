"""Autograd functions that join the gradients of several modules, and the checks of when these functions apply.

Files, in reading order:

- `plain_modules.py`: which modules may be computed without being called.
- `projections.py`: linear layers that share their input.
- `rotated_projections.py`: the linear layers of q, k and v, and the rotation of q and k.
- `tied_embedding.py`: an embedding whose weight is also the head's.
- `embedding_rows.py`: the kernel that adds the rows of an embedding's gradient.
- `second_order.py`: gradients that can be differentiated again.
"""
