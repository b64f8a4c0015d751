"""Run a program under inspection, also on a machine without a GPU.

Files, in reading order:

- `command.py`: which file or module a command line runs.
- `script.py`: starts a script in a child process and gathers the results, even of a script that crashes.
- `child_process.py`: the child process itself.
- `repeated_loops.py`: ends long loops that only repeat launches.
- `spawned_processes.py`: receives the kernels of processes that the script starts.
- `watch.py`: lets a session see every launch of this process.
- `tensor_tracker.py`: sees every torch call: which tensors are on the GPU, which bytes were written.
- `cuda_kernels.py`: operators that a script registers for CUDA.
- `half_precision.py`: half-precision sums as a GPU computes them.
- `written_memory.py`: which bytes of a storage were written.
- `deferred_programs.py`: programs that run only when their results are read.
- `cuda_graphs.py`: CUDA graphs, whose calls run again at each replay.
- `inductor.py`: the Triton kernels that `torch.compile` generates.
- `gpu_stand_in.py`: answers for `torch.cuda` on a machine without a GPU.
"""
