"""Run a Python program under PyTorch's profiler or Proton. Started by its path, so it works without Tilesmith.

python runner.py torch|proton FOLDER script.py|-m module|-c code [arguments…]
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

INTERRUPTED = 130


def main() -> None:
    tool, folder, *target = sys.argv[1:]
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]  # this folder: its modules must not shadow the program's modules
    record = {"torch": under_torch, "proton": under_proton}[tool]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler's messages on standard error
    try:
        importlib.import_module({"torch": "torch.profiler", "proton": "triton.profiler"}[tool])
    except ImportError as error:
        sys.exit(f"{sys.executable} cannot be profiled: {error}. Use a Python that has {tool}.")
    sys.exit(record(Path(folder), partial(run, target)))


def under_torch(folder: Path, program: Callable[[], int]) -> int:
    import torch
    from torch.profiler import ProfilerActivity, profile

    has_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]) as profiler:
        status = program()
        if has_gpu:
            with suppress(RuntimeError):  # the program already reported a failed kernel
                torch.cuda.synchronize()
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    return status


def under_proton(folder: Path, program: Callable[[], int]) -> int:
    import triton.profiler

    triton.profiler.start(str(folder / "proton"), hook="triton")
    try:
        return program()
    finally:
        triton.profiler.finalize()


def run(target: Sequence[str]) -> int:
    """Run the program as Python would. Return its exit status instead of exiting, so that the recording is saved."""
    try:
        if target[0] == "-m":
            _set_program(target[1:], os.getcwd())
            runpy.run_module(target[1], run_name="__main__", alter_sys=True)
        elif target[0] == "-c":
            _set_program(["-c", *target[2:]], "")
            exec(compile(target[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            _set_program(target, str(Path(target[0]).resolve().parent))
            runpy.run_path(target[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _set_program(arguments: Sequence[str], folder: str) -> None:
    sys.argv = [*arguments]
    sys.path.insert(0, folder)


if __name__ == "__main__":
    main()
