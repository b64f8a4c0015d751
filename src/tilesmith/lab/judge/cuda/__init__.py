"""CUDA candidates: sources that a candidate builds by torch.utils.cpp_extension, judged by their launches on a GPU.

The judge compiles the sources itself, and links a recorder between the host code and the CUDA runtime. So the launches
of the host code become steps of a tape, like those of Triton, and a clean process replays them on other inputs.

Files, in reading order:

- `toolkit.py`: nvcc and the other tools, or the sentence that says what is missing.
- `sources.py`: what a candidate asks torch.utils.cpp_extension to build, as plain data.
- `launch_recorder.py`: the C++ between host code and CUDA runtime.
- `building.py`: in a confined process: nvcc, the host compiler and the linker.
- `builds.py`: asks that process, and keeps what it built.
- `driver.py`: the CUDA driver: modules, functions, launches.
- `device_tape.py`: a tape on a GPU, with the launches of CUDA kernels.
- `worker.py`: the candidate's process on a GPU.
- `launching.py`: launches of a tape, in the clean process.
- `replayed.py`: replays one trial on the GPU, and says what is wrong.
- `sanitizer.py`: compute-sanitizer over the launches of one trial.
- `sanitized_run.py`: the program that compute-sanitizer watches.
- `stage.py`: one candidate's builds, processes, and what follows its trials.
"""
