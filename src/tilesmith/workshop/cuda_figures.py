"""Figures of a CUDA program, counted without a GPU: launches and copies, sectors of memory, turns of banks.

The program is compiled so that a function is called before every access; `cuda/accesses.cpp` has these functions, puts
what the lanes of a warp ask for together, and prints a line for each instruction.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilesmith.workshop.exercise import ExerciseError, Goal
from tilesmith.workshop.goals import Measured

# Without optimisation every access in the source is one in the program; at a fixed address a line can be found for it.
SHARED_OPTIONS = ("-O0", "-DCOUNT_ACCESSES", "-no-pie")
_ACCESS = re.compile(r"access (\S+) (load|store) (global|shared) requests=(\d+) moved=(\d+) least=(\d+)")


def watching_options(compiler: str) -> list[str]:
    """How g++ or clang++ is asked to call a function before each access, and for nothing else."""
    settings = {"asan-instrumentation-with-call-threshold": 0, "asan-globals": 0, "asan-stack": 0}
    if "clang" in Path(compiler).name:
        given = [word for name, value in settings.items() for word in ("-mllvm", f"-{name}={value}")]
    else:
        given = [word for name, value in settings.items() for word in ("--param", f"{name}={value}")]
    return ["-fsanitize=kernel-address", *given]


@dataclass(frozen=True)
class Access:
    """One load or store of the source, in the harness's first case. `moved` are sectors of 32 bytes or turns of shared
    memory, `least` as few as would do for what is wanted."""

    kind: str
    memory: str
    place: str  # file:line, where it is known
    requests: int
    moved: int
    least: int


@dataclass(frozen=True)
class Figures:
    """What a program did: counts over all of the harness's cases, and accesses in the first."""

    counts: Mapping[str, int]
    accesses: tuple[Access, ...]

    def access(self, kind: str, memory: str) -> Access:
        """The first load or store of "global" or "shared" memory."""
        return next(one for one in self.accesses if (one.kind, one.memory) == (kind, memory))

    def measure(self, goal: Goal) -> Measured:
        """What a goal's metric comes to."""
        if goal.metric in self.counts:
            return Measured(self.counts[goal.metric])
        if goal.metric not in METRICS:
            known = sorted({*METRICS, *self.counts})
            raise ExerciseError(f"no metric is called {goal.metric!r}; in CUDA there are {', '.join(known)}")
        return METRICS[goal.metric](self)


def _sector_efficiency(figures: Figures) -> Measured:
    found = [(one.least / one.moved, one) for one in figures.accesses if one.memory == "global"]
    if not found:
        raise ExerciseError("no kernel touches global memory, so there is no sector_efficiency")
    value, worst = min(found, key=lambda pair: pair[0])
    return Measured(value, f"the {worst.kind} on {worst.place}")


def _bank_conflicts(figures: Figures) -> Measured:
    shared = [one for one in figures.accesses if one.memory == "shared"]
    worst = max(shared, key=lambda one: one.moved - one.least, default=None)
    turns = sum(one.moved - one.least for one in shared)
    return Measured(turns, f"the {worst.kind} on {worst.place}" if worst and turns else "")


METRICS: dict[str, Callable[[Figures], Measured]] = {
    "sector_efficiency": _sector_efficiency,
    "bank_conflicts": _bank_conflicts,
}


def read(output: str, program: Path, file: Path) -> Figures:
    """What the counting program printed."""
    counts = re.findall(r"(\w+)=(\d+)", output.rpartition("counts ")[2])
    accesses = []
    for address, kind, memory, requests, moved, least in _ACCESS.findall(output):
        place = _place(program, address, file)
        accesses.append(Access(kind, memory, place, int(requests), int(moved), int(least)))
    return Figures({name: int(number) for name, number in counts}, tuple(accesses))


def _place(program: Path, address: str, file: Path) -> str:
    """The line of the learner's file that an instruction comes from; the file alone where that cannot be found out."""
    tool = shutil.which("addr2line")
    if tool is None:
        return file.name
    found = subprocess.run([tool, "-e", program, address], capture_output=True, text=True).stdout
    line = re.search(r":(\d+)", found)
    return f"{file.name}:{line[1]}" if line and file.name in found else file.name
