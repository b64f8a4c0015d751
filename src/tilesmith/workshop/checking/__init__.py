"""Checking a learner's Python file: the stages, the goals and the messages.

Files, in reading order:

- `verdict.py`: the results of a check and of a quiz as plain data.
- `unfinished_code.py`: the stage "parses": syntax, gaps and the required function.
- `traced_call.py`: one call of the learner's function in the interpreter, with all accesses recorded.
- `goals.py`: the metrics that goals are about, computed from a traced call.
- `failure_messages.py`: the messages for learners whose file fails a stage.
- `nan_origin.py`: the line on which a stored NaN was computed.
- `program_order.py`: a call with the programs in reverse order.
- `evaded_work.py`: right results that evade the work: views, one program, a launch per row, PyTorch for other sizes.
- `staged_check.py`: the part that all kinds of check share.
- `loading.py`: importing a file that is no part of a package.
- `triton_check.py`: all stages for a Triton file.
- `program_check.py`: all stages for a Python program around kernels, by the exercise's own `checks.py`.
- `pretended_gpu.py`: a GPU with its own clock, for programs that measure; devices and dtypes without running kernels.
- `constant_sweep.py`: the table of an exercise: one row per value of a constant.
- `gpu_timing.py`: the stage "speed": times on this machine's GPU.
"""
