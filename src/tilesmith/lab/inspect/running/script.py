"""Run a script in a child process and gather its inspection, even if the script crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilesmith.lab.inspect.model import Ending, Inspection, Kernel
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.running import child_process
from tilesmith.lab.inspect.running.spawned_processes import SpawnedProcesses

POLL_SECONDS = 0.2
SECONDS_TO_START = 600.0  # importing torch and Triton from a slow disk
SECONDS_TO_END = 10.0
SECONDS_TO_ANSWER = 3.0
MOST_ELAPSED = 20  # times the limit, where that counts CPU time
GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Limits:
    """Time and memory after which a script is killed. With `of_cpu`, its CPU time counts, whatever else runs."""

    seconds: float = 300.0
    gigabytes: float = 8.0
    of_cpu: bool = False


@dataclass
class _Gathered:
    """Everything received through the pipe."""

    kernels: dict[int, Kernel] = field(default_factory=dict)
    launches: dict[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    device: str = ""
    has_gpu: bool = False
    sector_bytes: int = 32
    triton: str = ""
    compiling: tuple[str, str] = ("", "")
    ending: Ending | None = None


def inspect_script(
    script: Path | str,
    arguments: Sequence[str] = (),
    options: InspectOptions | None = None,
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Inspection:
    """Run `python script arguments…` and explain every kernel that it launches. The script never makes this raise.

    `script` is a file, or the name of a module such as `pytest`. Processes that the script starts are inspected too.
    """
    options, limits = options or InspectOptions(), limits or Limits()
    while True:
        gathered = _run_once(script, arguments, options, limits, progress)
        crashed = gathered.ending is not None and gathered.ending.kind == "signal"
        if not crashed or not gathered.compiling[0] or gathered.compiling in options.not_compiled:
            return _inspection(script, arguments, gathered)
        # The compiler crashed: run the script again without this compilation.
        options = replace(options, not_compiled=(*options.not_compiled, gathered.compiling))


def _run_once(
    script: Path | str,
    arguments: Sequence[str],
    options: InspectOptions,
    limits: Limits,
    progress: Callable[[str], None],
) -> _Gathered:
    ours, theirs = _pipe()
    process = subprocess.Popen(
        [sys.executable, child_process.__file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    gathered = _Gathered()
    with SpawnedProcesses(options) as spawned:
        try:
            ours.send((options, str(script), list(arguments), spawned.address))
            gathered.ending = _gather(ours, process, gathered, limits, progress)
        except BrokenPipeError:
            gathered.ending = _unexpected_end(process.wait())
        finally:
            process.kill()
            process.wait()
            ours.close()
    for kernel in spawned.kernels():
        gathered.kernels[len(gathered.kernels)] = kernel
    return gathered


def _pipe() -> tuple[Connection, Connection]:
    from multiprocessing import Pipe

    return Pipe()


def _gather(
    pipe: Connection,
    process: subprocess.Popen[bytes],
    gathered: _Gathered,
    limits: Limits,
    progress: Callable[[str], None],
) -> Ending:
    clock: Callable[[], float] = (lambda: _cpu_seconds(process.pid)) if limits.of_cpu else time.monotonic
    deadline = clock() + SECONDS_TO_START
    latest = time.monotonic() + SECONDS_TO_START + MOST_ELAPSED * limits.seconds  # for a script that sleeps
    while True:
        while not pipe.poll(POLL_SECONDS):
            if clock() > deadline or time.monotonic() > latest:
                of_cpu = " of CPU time" if limits.of_cpu else ""
                inside = _kernel_that_runs(pipe, process, gathered, progress)
                return Ending("timeout", 1, f"was still running after {limits.seconds:g} s{of_cpu}{inside}")
            if _resident_bytes(process.pid) > limits.gigabytes * GIGABYTE:
                return Ending("memory", 1, f"used more than {limits.gigabytes:g} GB of memory")
        try:
            message = pipe.recv()
        except (EOFError, ConnectionResetError):
            return _unexpected_end(process.wait(SECONDS_TO_END))
        if message[0] == "ended":
            ending: Ending = message[1]
            return ending
        if message[0] == "started":
            deadline = clock() + limits.seconds
        _note(message, gathered, progress)


def _kernel_that_runs(
    pipe: Connection, process: subprocess.Popen[bytes], gathered: _Gathered, progress: Callable[[str], None]
) -> str:
    """Ask the script's process where it is. Return the kernel that runs, in words; empty where there is none."""
    process.send_signal(signal.SIGUSR1)
    try:
        while pipe.poll(SECONDS_TO_ANSWER):
            message = pipe.recv()
            if message[0] == "position":
                return f" in kernel {message[1]}" if message[1] else ""
            _note(message, gathered, progress)
    except (EOFError, OSError):
        pass
    return ""


def _note(message: Any, gathered: _Gathered, progress: Callable[[str], None]) -> None:
    match message:
        case ("started", has_gpu, sector_bytes, triton):
            gathered.has_gpu, gathered.sector_bytes, gathered.triton = has_gpu, sector_bytes, triton
            progress("running")
        case ("compiling", kernel, target):
            gathered.compiling = (kernel, target)
            progress(f"compiling {kernel} for {target}" if kernel else "running")
        case ("kernel", number, kernel):
            gathered.kernels[number] = kernel
        case ("summary", facts):
            gathered.device, gathered.notes, gathered.launches = facts["device"], facts["notes"], facts["launches"]


def _unexpected_end(status: int) -> Ending:
    if status >= 0:
        return Ending("signal", status, f"ended its process with status {status}")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return Ending("signal", status, f"was killed by {name}")


def _resident_bytes(process_id: int) -> int:
    """Return the resident memory of a process; 0 where the system does not report it."""
    try:
        pages = Path(f"/proc/{process_id}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _cpu_seconds(process_id: int) -> float:
    """Return the CPU time of a process; 0 where the system does not report it."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time


def _inspection(script: Path | str, arguments: Sequence[str], gathered: _Gathered) -> Inspection:
    from tilesmith import __version__

    return Inspection(
        tilesmith=__version__,
        torch=version("torch"),
        triton=gathered.triton,
        script=str(script),
        arguments=tuple(arguments),
        device=gathered.device,
        has_gpu=gathered.has_gpu,
        sector_bytes=gathered.sector_bytes,
        kernels=tuple(
            replace(kernel, launches=gathered.launches.get(number, 1))
            for number, kernel in sorted(gathered.kernels.items())
        ),
        ending=gathered.ending or Ending("finished"),
        notes=gathered.notes,
    )
