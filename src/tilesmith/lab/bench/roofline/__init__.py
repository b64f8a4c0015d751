"""Limits of the device, and how close a time comes to them.

Files, in reading order:

- `device_limits.py`: bandwidth, matrix rates and launch time, measured or from the datasheet.
- `floor.py`: the least time that the limits allow, and the share of it that a row reaches.
- `verdict.py`: what bounds a row, and what to try next.
"""
