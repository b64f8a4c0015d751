"""The only room that touches Triton's internals, which change with every release.

Files, in reading order:

- `versions.py`: differences between the supported Triton releases.
- `availability.py`: which backends and tools the installed Triton has.
- `machine.py`: the GPU, compilers and profilers of this machine, and advice on what is missing.
- `cache_folder.py`: a folder for Triton's cache that can be written.
- `gluon.py`: Gluon's names in different releases, and its TMA descriptors.
- `launcher.py`: launching a compiled kernel with little host time.
- `launches.py`: recording the kernels that a program launches on a GPU.
- `compiler/`: compiling for a named GPU, and facts from the binary.
- `interpreter/`: running kernels on CPU tensors.
- `configurations.py`: the configurations of an autotuner, by number.
- `variable.py`: a variable of a kernel as plain data.
- `portable/`: launches as plain data, for another process.
- `benchmarks.py`: benchmarks, profilers and cuBLAS that a script uses, without a GPU.
"""
