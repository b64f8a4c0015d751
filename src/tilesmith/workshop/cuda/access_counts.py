"""Counts of a CUDA program without a GPU: launches, copies, sectors of global memory, wavefronts of shared memory.

The compiler inserts a function call before every access. `accesses.cpp` defines these functions, groups the accesses of
the lanes of a warp into requests, and prints one line per instruction.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilesmith import storage
from tilesmith.workshop.checking.goals import Measured
from tilesmith.workshop.course.exercise import ExerciseError, Goal

# Without optimisation, every access in the source is one access in the program. Fixed addresses lead back to lines.
COMPILE_OPTIONS = ("-O0", "-DCOUNT_ACCESSES", "-fno-pie")
INSTRUMENTATION = "-fsanitize=thread"  # when compiling, not when linking: accesses.cpp takes the sanitizer's place
WARP = 32
_SOURCES = tuple(Path(__file__).with_name(name) for name in ("accesses.cpp", "accesses.h"))
_RACE = re.compile(r"race (\S+) blocks=(\d+),(\d+)")
_ACCESS = re.compile(r"access (\S+) (load|store) (global|shared) requests=(\d+) lanes=(\d+) moved=(\d+) least=(\d+)")


@dataclass(frozen=True)
class Access:
    """One load or store of the source, in the harness's first case.

    `moved` counts sectors of 32 bytes in global memory, or wavefronts in shared memory. `least` is the fewest possible.
    `lanes` counts the lanes that took part in the requests: 32 in each, if the warp is whole.
    """

    kind: str
    memory: str
    place: str  # file:line; the file alone where the line is unknown
    requests: int
    lanes: int
    moved: int
    least: int


@dataclass(frozen=True)
class Race:
    """Two blocks of a launch that access the same byte of global memory: one writes, and one is no atomic."""

    place: str  # file:line; the file alone where the line is unknown
    first: int  # numbers of the blocks, in the order in which they ran
    second: int


@dataclass(frozen=True)
class ProgramCounts:
    """The counts and the first race of a program over all of the harness's cases; its accesses in the first case."""

    counts: Mapping[str, int]
    accesses: tuple[Access, ...]
    race: Race | None = None

    def access(self, kind: str, memory: str) -> Access:
        """Return the first load or store of "global" or "shared" memory."""
        return next(one for one in self.accesses if (one.kind, one.memory) == (kind, memory))

    def measure(self, goal: Goal) -> Measured:
        """Return the value of a goal's metric."""
        if goal.metric in self.counts:
            return Measured(self.counts[goal.metric])
        if goal.metric not in METRICS:
            known = sorted({*METRICS, *self.counts})
            raise ExerciseError(f"there is no metric {goal.metric!r}; the metrics for CUDA are {', '.join(known)}")
        return METRICS[goal.metric](self)


def _sector_efficiency(program: ProgramCounts) -> Measured:
    found = [(one.least / one.moved, one) for one in program.accesses if one.memory == "global"]
    if not found:
        raise ExerciseError("no kernel touches global memory, so there is no sector_efficiency")
    value, worst = min(found, key=lambda pair: pair[0])
    return Measured(value, f"the {worst.kind} on {worst.place}")


def _bank_conflicts(program: ProgramCounts) -> Measured:
    shared = [one for one in program.accesses if one.memory == "shared"]
    worst = max(shared, key=lambda one: one.moved - one.least, default=None)
    conflicts = sum(one.moved - one.least for one in shared)
    return Measured(conflicts, f"the {worst.kind} on {worst.place}" if worst and conflicts else "")


def _warp_efficiency(program: ProgramCounts) -> Measured:
    """Return the lanes that take part in a load or store, as a share of the warps' lanes; the worst one is named."""
    if not program.accesses:
        raise ExerciseError("no kernel loads or stores, so there is no warp_efficiency")
    worst = min(program.accesses, key=lambda one: one.lanes / one.requests)
    requests, lanes = (sum(getattr(one, what) for one in program.accesses) for what in ("requests", "lanes"))
    return Measured(lanes / (WARP * requests), f"the {worst.kind} on {worst.place}")


def _global_loads(program: ProgramCounts) -> Measured:
    loads = [one for one in program.accesses if (one.kind, one.memory) == ("load", "global")]
    worst = max(loads, key=lambda one: one.requests, default=None)
    return Measured(sum(one.requests for one in loads), f"the load on {worst.place}" if worst else "")


METRICS: dict[str, Callable[[ProgramCounts], Measured]] = {
    "sector_efficiency": _sector_efficiency,
    "bank_conflicts": _bank_conflicts,
    "warp_efficiency": _warp_efficiency,
    "global_load_requests": _global_loads,
}


def counting_part(compiler: str, scratch: Path, run: Callable[[list[str]], None]) -> Path:
    """Return the object file of accesses.cpp, which is the same for every learner's file: compiled once per compiler.

    `run` runs a compiler. Where the cache cannot be written, the object file stays in the folder `scratch`.
    """
    command = [compiler, "-c", "-std=c++20", "-g1", "-pthread", *COMPILE_OPTIONS, "-O2", str(_SOURCES[0])]
    version = subprocess.run([compiler, "--version"], capture_output=True).stdout
    digest = hashlib.sha256(b"\0".join([version, *(one.read_bytes() for one in _SOURCES), *map(str.encode, command)]))
    kept = storage.cache_directory() / "workshop" / f"accesses-{digest.hexdigest()[:16]}.o"
    if kept.is_file():
        return kept
    made = scratch / "accesses.o"
    run([*command, "-o", str(made)])
    try:
        storage.write_atomically(kept, made.read_bytes())
    except OSError:
        return made
    return kept


def read_counts(output: str, program: Path, file: Path) -> ProgramCounts:
    """Return the counts that the counting program printed."""
    counts = re.findall(r"(\w+)=(\d+)", output.rpartition("counts ")[2])
    accesses = []
    for address, kind, memory, *numbers in _ACCESS.findall(output):
        place = _place(program, address, file)
        accesses.append(Access(kind, memory, place, *map(int, numbers)))
    raced = _RACE.search(output)
    race = raced and Race(_place(program, raced[1], file), int(raced[2]), int(raced[3]))
    return ProgramCounts({name: int(number) for name, number in counts}, tuple(accesses), race)


def _place(program: Path, address: str, file: Path) -> str:
    """Return file:line of an instruction; the file name alone where the line is unknown."""
    tool = shutil.which("addr2line")
    if tool is None:
        return file.name
    found = subprocess.run([tool, "-e", program, address], capture_output=True, text=True).stdout
    line = re.search(r":(\d+)", found)
    return f"{file.name}:{line[1]}" if line and file.name in found else file.name
