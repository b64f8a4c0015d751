"""Python programs that tests start, as forks of the process that runs the tests.

A process of its own imports PyTorch and Triton for three seconds before it does anything. A fork has them: it has its
own memory, pipes, working folder, environment and exit status all the same, and not its own modules and settings.

Only the main thread forks. A fork of another thread destroys what the main thread keeps for itself, such as a process
group of `torch.distributed`, which waits for its threads for ever: a fork has one thread. Code that asks for a fork
server gets one: it asks because its threads hold locks, which a fork would copy.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from tilesmith.toolchain.compiler import prepare
from time_limits import end_after

TORCHRUN_STARTS_IN = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
LONGEST_SECONDS = 300
"""A fork that hangs prints its stacks and ends before the limit of the test that waits for it."""


@contextmanager
def forking() -> Iterator[None]:
    """Programs of this Python that are started meanwhile are forks. Not beside a GPU, which a fork cannot use."""
    with pytest.MonkeyPatch.context() as changed:
        if not torch.cuda.is_available():
            prepare()  # else each fork that compiles would hash the compiler's files
            context_of = multiprocessing.get_context

            def forking_context(method: str | None = None) -> Any:
                return context_of("fork" if method != "forkserver" and _may_fork() else method)

            changed.setattr(multiprocessing, "get_context", forking_context)
            changed.setattr(subprocess, "Popen", Popen)
            if TORCHRUN_STARTS_IN in sys.modules:  # it has imported Popen by name
                changed.setattr(sys.modules[TORCHRUN_STARTS_IN], "Popen", Popen)
        yield


def _may_fork() -> bool:
    return threading.current_thread() is threading.main_thread()


class Popen(subprocess.Popen[Any]):
    """Started like any other process. Before another program would take its place, ours runs in it."""

    def __init__(
        self,
        args: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Collection[int] = (),
        **options: Any,
    ) -> None:
        words = [str(word) for word in args if word != "-u"]  # a fork's output is not held back anyway
        if _may_fork() and words[0] == sys.executable and (words[1] in ("-c", "-m") or words[1].endswith(".py")):
            environment = dict(os.environ if env is None else env)
            options["preexec_fn"] = partial(_become, words[1:], environment, [*pass_fds])
        super().__init__(args, env=env, pass_fds=pass_fds, **options)


def _become(words: list[str], environment: dict[str, str], kept: list[int]) -> NoReturn:
    status = 1
    try:
        _leave_the_tests(environment, kept)
        _run(words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for the program's threads, as Python does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _leave_the_tests(environment: dict[str, str], kept: list[int]) -> None:
    """Nothing of the tests' own files, handlers and output is touched any more."""
    gc.freeze()  # what has one of the files below must not close what is opened under its number later
    first = 3
    for descriptor in [*sorted(kept), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(first, descriptor)
        first = descriptor + 1
    atexit._clear()
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, mode, closefd=False), line_buffering=True, write_through=number == 2)
        for number, mode in enumerate(("rb", "wb", "wb"))
    )
    end_after(LONGEST_SECONDS, 2)


def _run(words: list[str]) -> None:
    """As Python's command line does."""
    kind, rest = words[0], words[1:]
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")
