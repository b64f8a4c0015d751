"""Example kernels of the tour.

Files, in reading order:

- `broken_rms_norm.py`: a kernel with a mistake, for `tilesmith check`.
- `column_walk.py`: an uncoalesced kernel and its fix, for `tilesmith inspect`.
"""
