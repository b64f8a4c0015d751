"""Checks a `.cu` file without a GPU: compiled as C++ against `cuda/cuda_runtime.h`, run under the sanitizers.

Where nvcc is there it has to compile the same file, and where there is a GPU too, the result must be right on it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilesmith.workshop.exercise import Exercise, ExerciseError
from tilesmith.workshop.verdict import Verdict

INCLUDES = Path(__file__).parent / "cuda"
SECONDS_TO_RUN = 20.0
_WRONG = 3  # harness.h's status
_LAUNCH = re.compile(r"(\w+)\s*<<<(.*?)>>>\s*\(", re.DOTALL)
_GAP = re.compile(r"//.*TODO|/\*.*?TODO")
_WARNINGS = re.compile(r"(heap|global|stack)-(buffer-overflow|use-after-free)|data race|SEGV|attempting double-free")
_OUTSIDE = "Something outside of what was allocated is read or written. Which threads have no element?"
_TEACHES = {
    "buffer-overflow": _OUTSIDE,
    "use-after-free": _OUTSIDE,  # far outside, where something lay before
    "data race": (
        "Two threads touch the same place, at least one of them writing, and no __syncthreads() lies between: which "
        "comes first is chance."
    ),
}


@dataclass(frozen=True)
class _Ran:
    status: int
    output: str


class CudaFailure(Exception):
    """A stage that was not passed; the message is for the learner."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class CudaCheck:
    """A check of one `.cu` file. `entering` is told each stage as it begins."""

    def __init__(self, exercise: Exercise, file: Path, entering: Callable[[str], None] = lambda stage: None) -> None:
        self.exercise = exercise
        self.file = file
        self._entering = entering

    def verdict(self) -> Verdict:
        try:
            self._parses()
            self._entering("compiles")
            program = self._built("address")
            self._entering("runs")
            # A race may make the result wrong, and explains it better: so both run before either result counts.
            self._right(self._run(program), self._run(self._built("thread")))
            on_gpu = self._built_by_nvcc()
            if on_gpu is not None and os.path.exists("/dev/nvidia0"):
                self._right(self._run(on_gpu))
        except CudaFailure as failure:
            return Verdict(self.exercise.id, False, failure.stage, str(failure))
        return Verdict(self.exercise.id, True, "goals", "")

    def counts(self) -> Mapping[str, int]:
        """How many launches, blocks, threads, barriers and copies the harness took, over all of its cases."""
        found = re.findall(r"(\w+)=(\d+)", self._run(self._built("address")).output)
        return {name: int(number) for name, number in found}

    def _parses(self) -> None:
        self._entering("parses")
        for number, line in enumerate(self._source().splitlines(), 1):
            if _GAP.search(line):
                raise CudaFailure("parses", f"{self.file.name}:{number} is still to be written:\n    {line.strip()}")

    def _right(self, *results: _Ran) -> None:
        for result in results:
            if result.status == _WRONG:
                raise CudaFailure("right", result.output.partition("counts ")[0].strip())

    def _source(self) -> str:
        return self.file.read_text(encoding="utf-8", errors="replace")

    def _built(self, sanitizer: str) -> Path:
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise ExerciseError("the CUDA track needs a C++20 compiler: g++ or clang++ is not on the path")
        rewritten = self.file.with_name("rewritten.cpp")
        source = _LAUNCH.sub(r"launch(\1, \2)(", self._source())
        rewritten.write_text(f'#line 1 "{self.file.name}"\n{source}')
        program = self.file.with_name(f"checked-{sanitizer}")
        options = ["-std=c++20", "-g", "-O1", "-pthread", f"-fsanitize={sanitizer}", f"-I{INCLUDES}"]
        self._compile([compiler, "-x", "c++", *options, *self._harness(rewritten), "-o", str(program)])
        return program

    def _built_by_nvcc(self) -> Path | None:
        """The program for a GPU, where its compiler is there."""
        compiler = shutil.which("nvcc")
        if compiler is None:
            return None
        program = self.file.with_name("checked-on-gpu")
        # Only harness.h is ours here: beside it lies the header that takes the place of CUDA's own.
        shutil.copy(INCLUDES / "harness.h", self.file.parent)
        options = ["-std=c++17", f"-I{self.file.parent}"]
        self._compile([compiler, *options, *self._harness(self.file), "-o", str(program)])
        return program

    def _harness(self, learners: Path) -> list[str]:
        return [f'-DLEARNERS_FILE="{learners}"', str(self.exercise.folder / "harness.cu")]

    def _compile(self, command: list[str]) -> None:
        made = subprocess.run(command, capture_output=True, text=True, cwd=self.file.parent)
        if made.returncode:
            lines = [line for line in made.stderr.splitlines() if "error" in line] or made.stderr.splitlines()
            reason = lines[0].replace(f"{self.file.parent}/", "")
            raise CudaFailure("compiles", f"It does not compile: {reason}")

    def _run(self, program: Path) -> _Ran:
        quiet = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
        try:
            made = subprocess.run(
                [program], capture_output=True, text=True, timeout=SECONDS_TO_RUN, env={**os.environ, **quiet}
            )
        except subprocess.TimeoutExpired:
            raise CudaFailure(
                "runs", f"It was still running after {SECONDS_TO_RUN:g} s. Is there a loop that never ends?"
            ) from None
        if "FATAL: ThreadSanitizer" in made.stderr:  # its own trouble with this machine, not the learner's
            raise ExerciseError(f"the thread sanitizer does not work on this machine: {made.stderr.strip()[:200]}")
        if made.returncode not in (0, _WRONG):
            raise CudaFailure("runs", self._explained(made.stderr, made.returncode))
        return _Ran(made.returncode, made.stdout)

    def _explained(self, report: str, status: int) -> str:
        """What the sanitizer found, the learner's line, and what it means."""
        kind = _WARNINGS.search(report)
        if kind is None:
            return f"The program ended with status {status}: {report.strip()[:300]}"
        place = re.search(rf"{re.escape(self.file.name)}:(\d+)", report)
        line = self._source().splitlines()[int(place[1]) - 1].strip() if place else ""
        where = f"{self.file.name}:{place[1]}\n    {line}\n" if place else ""
        lesson = next((text for word, text in _TEACHES.items() if word in kind[0]), "")
        return f"{where}{kind[0]}. {lesson}".rstrip()
