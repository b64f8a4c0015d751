"""Checks a `.cu` file without a GPU: compiled as C++ against `cuda/cuda_runtime.h`, run under the sanitizers.

Where nvcc is there it has to compile the same file; where there is a GPU too, the result must be right on it, and its
time is shown beside that of the exercise's twin in Triton.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tilesmith.workshop import cuda_figures, messages
from tilesmith.workshop.cuda_figures import Figures
from tilesmith.workshop.exercise import Exercise, ExerciseError, load
from tilesmith.workshop.verdict import Reached, Verdict

INCLUDES = Path(__file__).parent / "cuda"
SECONDS_TO_RUN = 20.0
MOST_MEGABYTES = 2048
_USUAL_FOLDERS = ("/usr/local/cuda/bin",)  # where CUDA's installer puts nvcc, without adding it to the path
_WRONG = 3  # harness.h's status
_LAUNCH = re.compile(r"(\w+)\s*<<<(.*?)>>>\s*\(", re.DOTALL)
_GAP = re.compile(r"//.*TODO|/\*.*?TODO")
_WARNINGS = re.compile(r"(heap|global|stack)-(buffer-overflow|use-after-free)|data race|SEGV|attempting double-free")
_OUTSIDE = "Something outside of what was allocated is read or written. Which threads have no element?"
_TEACHES = {
    "buffer-overflow": _OUTSIDE,
    "use-after-free": _OUTSIDE,  # far outside, where something lay before
    "SEGV": _OUTSIDE,  # further still, where nothing ever lay
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
        self._goals: list[Reached] = []
        self._figures: Figures | None = None

    def verdict(self) -> Verdict:
        try:
            self._parses()
            self._entering("compiles")
            program = self._built("address")
            self._entering("runs")
            # A race may make the result wrong, and explains it better: so both run before either result counts.
            self._right(self._run(program), self._run(self._built("thread")))
            if self.exercise.goals:
                self._entering("goals")
                self._reaches_goals()
            on_gpu = self._built_by_nvcc()
            speed = self._speed(on_gpu) if on_gpu is not None and has_gpu() else []
        except CudaFailure as failure:
            return Verdict(self.exercise.id, False, failure.stage, str(failure), self._goals)
        last = "speed" if speed else "nvcc" if on_gpu is not None else "goals"
        return Verdict(self.exercise.id, True, last, "", self._goals, speed)

    def figures(self) -> Figures:
        """What the program did, counted in a build of its own."""
        if self._figures is None:
            program = self._built("counting")
            self._figures = cuda_figures.read(self._run(program).output, program, self.file)
        return self._figures

    def _reaches_goals(self) -> None:
        missed = None
        for goal in self.exercise.goals:
            found = self.figures().measure(goal)
            met = goal.met_by(found.value)
            self._goals.append(Reached(goal.name, found.value, goal.wanted, met))
            if not met and missed is None:
                missed = messages.missed_goal(goal, found)
        if missed is not None:
            raise CudaFailure("goals", missed)

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

    def _built(self, how: str) -> Path:
        """The program under the "address" or the "thread" sanitizer, or "counting" its accesses."""
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise ExerciseError("the CUDA track needs a C++20 compiler: g++ or clang++ is not on the path")
        rewritten = self.file.with_name("rewritten.cpp")
        source = _LAUNCH.sub(r"launch(\1, \2)(", self._source())
        rewritten.write_text(f'#line 1 "{self.file.name}"\n{source}')
        program = self.file.with_name(f"checked-{how}")
        options = ["-std=c++20", "-g", "-pthread", f"-I{INCLUDES}"]
        more: list[str] = []
        if how == "counting":
            accesses = self.file.with_name("accesses.o")
            options += [*cuda_figures.SHARED_OPTIONS]
            self._compile([compiler, "-c", *options, str(INCLUDES / "accesses.cpp"), "-o", str(accesses)])
            options += cuda_figures.watching_options(compiler)
            more = ["-x", "none", str(accesses)]
        else:
            options += ["-O1", f"-fsanitize={how}"]
        self._compile([compiler, "-x", "c++", *options, *self._harness(rewritten), *more, "-o", str(program)])
        return program

    def _built_by_nvcc(self) -> Path | None:
        """The program for a GPU, where its compiler is there."""
        compiler = nvcc()
        if compiler is None:
            return None
        self._entering("nvcc")
        program = self.file.with_name("checked-on-gpu")
        # Only harness.h is ours here: beside it lies the header that takes the place of CUDA's own.
        shutil.copy(INCLUDES / "harness.h", self.file.parent)
        options = ["-std=c++17", "-O2", f"-I{self.file.parent}", *(["-arch=native"] if has_gpu() else [])]
        command = [compiler, *options, *self._harness(self.file), "-o", str(program)]
        self._compile(command, "nvcc", "It compiles as C++, but not with nvcc")
        return program

    def _speed(self, program: Path) -> list[str]:
        """The same cases on this machine's GPU, and the time beside the twin's."""
        self._entering("speed")
        try:
            self._right(self._run(program))
            return self._timed_beside_twin(program)
        except CudaFailure as failure:
            raise CudaFailure("speed", f"It passes without a GPU, but not on this one: {failure}") from failure

    def _timed_beside_twin(self, program: Path) -> list[str]:
        from tilesmith.workshop.speed import beside_twin
        from tilesmith.workshop.stages import model_spec

        if self.exercise.twin is None:
            return []
        twin = load(self.exercise.folder.parent / self.exercise.twin)
        lines: list[str] = []
        for size in twin.timed:
            ran = self._run(program, *map(str, size.sizes.values()))
            self._right(ran)
            lines += beside_twin(float(ran.output.rpartition("milliseconds ")[2].split()[0]), model_spec(twin), size)
        return lines

    def _harness(self, learners: Path) -> list[str]:
        return [f'-DLEARNERS_FILE="{learners}"', str(self.exercise.folder / "harness.cu")]

    def _compile(self, command: list[str], stage: str = "compiles", what: str = "It does not compile") -> None:
        made = subprocess.run(command, capture_output=True, text=True, cwd=self.file.parent)
        if made.returncode:
            lines = made.stderr.splitlines() or [f"{command[0]} ended with status {made.returncode}"]
            reason = next((line for line in lines if "error" in line), lines[0])
            raise CudaFailure(stage, f"{what}: {reason.replace(f'{self.file.parent}/', '')}")

    def _run(self, program: Path, *sizes: str) -> _Ran:
        limit = f"hard_rss_limit_mb={MOST_MEGABYTES}"
        quiet = {"ASAN_OPTIONS": f"detect_leaks=0:{limit}", "TSAN_OPTIONS": f"halt_on_error=1:{limit}"}
        try:
            made = subprocess.run(
                [program, *sizes], capture_output=True, text=True, timeout=SECONDS_TO_RUN, env={**os.environ, **quiet}
            )
        except subprocess.TimeoutExpired:
            raise CudaFailure(
                "runs", f"It was still running after {SECONDS_TO_RUN:g} s. Is there a loop that never ends?"
            ) from None
        if "FATAL: ThreadSanitizer" in made.stderr:  # its own trouble with this machine, not the learner's
            raise ExerciseError(f"the thread sanitizer does not work on this machine: {made.stderr.strip()[:200]}")
        if "rss limit exhausted" in made.stderr:
            raise CudaFailure("runs", f"It took more than {MOST_MEGABYTES / 1024:g} GB of memory.")
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


def nvcc() -> str | None:
    """CUDA's compiler: on the path, in CUDA_HOME, or where its installer puts it."""
    home = os.environ.get("CUDA_HOME")
    folders = [os.environ.get("PATH", ""), *([f"{home}/bin"] if home else []), *_USUAL_FOLDERS]
    return shutil.which("nvcc", path=os.pathsep.join(folders))


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available() and torch.version.hip is None
