"""Norms of rows: what RMSNorm and LayerNorm share.

Files, in reading order:

- `rows.py`: tiles of rows, their parameters, and sums along rows.
- `forward.py`: the forms of a norm's forward, and its planner.
- `backward.py`: the forms of a norm's backward, and its planner.
- `any_width.py`: one more form each way, for rows of any width from any address on.
- `any_width_kernels.py`: its kernels.
- `persistent_forward.py`: one more form of the forward, for narrow rows of odd width.
- `team_backward.py`: one more form of the backward, for wide rows.
"""
