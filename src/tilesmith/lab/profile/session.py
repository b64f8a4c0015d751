"""Choose a profiler and run a command under it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tilesmith.lab.profile import nsight, proton_tree, rocprof, torch_trace
from tilesmith.lab.profile.commands import is_python, runnable
from tilesmith.lab.profile.runner import INTERRUPTED
from tilesmith.lab.profile.summary import ProfileError, Summary
from tilesmith.toolchain.machine import Machine

_SECONDS_TO_FINISH = 60


@dataclass(frozen=True)
class Tool:
    """A profiler: required GPU vendors, installation, the command that records, and the reader of the recording."""

    name: str
    vendors: Sequence[str]
    installation: str
    command: Callable[[Sequence[str], Path], list[str]]
    read: Callable[[Path], Summary]


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("torch", (), "pip install torch", torch_trace.command, torch_trace.read),
        Tool("proton", ("nvidia", "amd"), "it comes with Triton: pip install triton",
             proton_tree.command, proton_tree.read),
        Tool("ncu", ("nvidia",), "it comes with the CUDA toolkit, in the package nsight-compute",
             nsight.command, nsight.read),
        Tool("rocprofv3", ("amd",), "it comes with ROCm, in the package rocprofiler-sdk; put /opt/rocm/bin on the PATH",
             rocprof.trace_command, rocprof.read_trace),
        Tool("rocprof-compute", ("amd",), "it comes with ROCm, in the package rocprofiler-compute",
             rocprof.counters_command, rocprof.read_counters),
    )
}  # fmt: skip


def choose(name: str, command: Sequence[str], machine: Machine) -> Tool:
    """Return the tool of this name. `auto` means PyTorch's profiler for Python programs, else the vendor's profiler.

    Raises ProfileError where this machine cannot use the tool.
    """
    if name == "auto":
        name = "torch" if is_python(command) else _for_any_program(command, machine)
    if name not in TOOLS:
        raise ProfileError(f"--tool is {name!r}, but must be one of auto, {', '.join(TOOLS)}")
    tool = TOOLS[name]
    vendor = machine.gpu.vendor if machine.gpu else None
    if name not in machine.profilers:
        raise ProfileError(f"{name} is not installed: {tool.installation}")
    if tool.vendors and vendor not in tool.vendors:
        needed = " or ".join({"nvidia": "NVIDIA", "amd": "AMD"}[one] for one in tool.vendors)
        raise ProfileError(
            f"{name} needs a GPU by {needed}, which this machine does not have; --tool torch profiles the CPU"
        )
    return tool


def _for_any_program(command: Sequence[str], machine: Machine) -> str:
    runnable(command)
    if machine.gpu is None:
        raise ProfileError(f"{command[0]} is not a Python program; without a GPU only Python programs can be profiled")
    return "ncu" if machine.gpu.vendor == "nvidia" else "rocprofv3"


def fresh_folder(out: Path, tool: Tool) -> Path:
    """Create and return a new folder for this run."""
    number = 1
    while (folder := out / f"{tool.name}-{number}").exists():
        number += 1
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ProfileError(f"cannot write to {out}: {error.strerror}") from error
    return folder


def run(command: Sequence[str]) -> int:
    """Run the command with this process's input and output. Return its exit status.

    After Ctrl-C the command has a minute to write its recording.
    """
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        raise ProfileError(f"cannot run {command[0]}: {error.strerror}") from error
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(timeout=_SECONDS_TO_FINISH)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        return INTERRUPTED


def discard_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
