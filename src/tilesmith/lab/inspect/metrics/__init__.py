"""Figures of one launch.

Files, in reading order:

- `launch_metrics.py`: bytes, flops, sectors and efficiency from the trace.
- `compiled_targets.py`: registers, occupancy and predicted least time from the binary of each target.
- `predicted_time.py`: the time that a launch is expected to take, from its PTX.
- `alignment.py`: finds the arguments whose alignment makes accesses narrow.
- `measured_time.py`: times a launch on a GPU and explains the gap to the prediction.
"""
