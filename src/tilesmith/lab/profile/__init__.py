"""Run a command under a profiler and summarise what it recorded.

Files, in reading order:

- `session.py`: chooses the profiler and runs the command.
- `commands.py`: splits a command line into Python and its program.
- `runner.py`: runs a Python program under PyTorch's profiler or Proton, inside the profiled process.
- `summary.py`: kernels by time, launch overhead, busy share; as tables.
- `profile_call.py`: `ts.lab.profile`, the function that users call.
- `torch_trace.py`: PyTorch's profiler.
- `proton_tree.py`: Proton, Triton's profiler.
- `nsight.py`: Nsight Compute.
- `rocprof.py`: AMD's rocprofv3 and rocprof-compute.
"""
