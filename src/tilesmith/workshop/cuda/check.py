"""All stages of a check for a `.cu` file, without a GPU.

g++ or clang++ compiles the file as C++ against `cuda_runtime.h` beside this module, and the sanitizers watch it run.
Where nvcc is installed, nvcc must compile the same file. Where there is also a GPU, the result must be right on it, and
its time is shown beside the time of the exercise's Triton twin.
"""

from __future__ import annotations

import math
import os
import re
import resource
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilesmith.workshop.checking.staged_check import StagedCheck, StageFailure
from tilesmith.workshop.checking.unfinished_code import NOT_UTF_8
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.cuda import access_counts
from tilesmith.workshop.cuda.access_counts import ProgramCounts
from tilesmith.workshop.cuda.compiler_messages import first_error
from tilesmith.workshop.cuda.source_rules import first_mistake, host_signature, without_comments

INCLUDES = Path(__file__).parent
SECONDS_TO_RUN = 20.0  # of CPU time, as the next one, so that a busy machine refuses no file
SECONDS_TO_COMPILE = 60.0
PATIENCE = 5  # how many times longer a compiler or a program on a busy machine may take
# Two sanitizers, two parts that count, nvcc; four runs.
SECONDS_IN_ALL = PATIENCE * (5 * SECONDS_TO_COMPILE + 4 * SECONDS_TO_RUN)
MOST_MEGABYTES = 2048
MOST_MEGABYTES_OF_COMPILER = {"compiles": 4096, "nvcc": 16384}
_USUAL_FOLDERS = ("/usr/local/cuda/bin",)  # CUDA's installer puts nvcc here and does not change the path
_WRONG = 3  # the exit status of harness.h for a wrong result
_LAUNCH = re.compile(r"(\w+(?:::\w+)*(?:\s*<[^<>;]*>)?)\s*<<<(.*?)>>>\s*\(", re.DOTALL)
_DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+((?:\w+\s+)*\w+)\s+(\w+)\s*\[\s*\]\s*;")
_POINTER_TO_SHARED = r"\1* const \2 = reinterpret_cast<\1*>(tilesmith::dynamic_shared);"
_NO_MEMORY = re.compile("out of memory|instance of 'std::bad_alloc'|Cannot allocate memory")
_GAP = re.compile(r"//.*TODO|/\*.*?TODO")
_WARNINGS = re.compile(
    r"(heap|global|stack)-(buffer-overflow|use-after-free)|use-after-poison|data race|SEGV|attempting double-free"
    r"|memcpy-param-overlap|divergent (barrier|shuffle)"
)
_FINISHED = re.compile(r"^run (\w+) cases=(\d+) alive=(\d+) launches=(\d+) copies=(\d+)$", re.MULTILINE)
_AT_THE_END = re.compile(r"^(?:run|counts) ", re.MULTILINE)
_COPY_METRICS = ("copies", "copied_bytes", "strided_copies", "async_copies")
_OUTSIDE = "A thread reads or writes outside of what was allocated. Which threads have no element?"
_NULL = "The address is 0 or close to it. Was this pointer set, by cudaMalloc or by an argument of the launch?"
_COPIED_TOO_MUCH = (
    "{} reads or writes outside of what was allocated. Sizes are in bytes: n * sizeof(float) for n floats."
)
_BLOCKS_MEET = (
    "access the same address, and at least one of them writes. Blocks run in any order and at the same time, and "
    "__syncthreads() waits for one block only. Let each block write its own elements, or add with atomicAdd."
)
_ONE_THREAD = (
    "The result is right, but each launch has a single thread, and a GPU has tens of thousands. Let each thread "
    "compute its own element: its number is blockIdx.x * blockDim.x + threadIdx.x."
)
_REFUSED = {
    "invalid configuration": (
        "A launch is refused: a grid has at least one block, and a block has 1 to 1,024 threads and at most 48 KB of "
        "shared memory. Look at the numbers between <<< and >>>."
    ),
    "invalid argument": (
        "A call is refused. cudaMemcpyHostToDevice copies from the host to the GPU, cudaMemcpyDeviceToHost from the "
        "GPU to the host: does the kind of each copy fit both pointers?"
    ),
}
_LESSONS = {
    "buffer-overflow": _OUTSIDE,
    "use-after-free": _OUTSIDE,  # far outside, in memory that was freed
    "overlap": "The source and the target of a copy overlap. Is its size in bytes that of what was allocated?",
    "use-after-poison": "The host reads or writes GPU memory. Only kernels and cudaMemcpy can.",
    "SEGV": _OUTSIDE,  # further still, in memory that was never allocated
    "divergent barrier": (
        "Only some threads of the block reach this __syncthreads() in a branch or after a return. On a GPU the "
        "block may wait forever. Move the barrier to a place that every thread reaches."
    ),
    "divergent shuffle": (
        "The mask of this shuffle names a lane that has returned and cannot answer. Let every lane of the mask reach "
        "the shuffle; a lane without an element brings 0."
    ),
    "data race": (
        "Two threads access the same address without a __syncthreads() between them, and at least one of them writes. "
        "Which access comes first is random."
    ),
}


@dataclass(frozen=True)
class _ProgramRun:
    status: int
    output: str
    number: str = ""  # of this run, which the program prints at its end


class CudaCheck(StagedCheck):
    """A check of one `.cu` file."""

    seconds_to_run = SECONDS_TO_RUN

    def __init__(self, exercise: Exercise, file: Path, entering: Callable[[str], None] = lambda stage: None) -> None:
        super().__init__(exercise, file, entering)
        self._counts: ProgramCounts | None = None

    def _pass_stages(self) -> tuple[str, list[str]]:
        self._require_parses()
        self._entering("compiles")
        self._require_accepted_by_nvcc()
        program = self._built("address")
        self._entering("runs")
        # A race may also make the result wrong, and a race explains more. So all builds run before a result counts.
        runs = self._run(program), self._run(self._built("thread"))
        self._require_no_race_between_blocks()
        self._require_right(*runs)
        for one in runs:
            self._require_finished(one)
        counts = self.counts().counts
        if counts["launches"] and counts["threads"] == counts["launches"]:
            raise StageFailure("goals", _ONE_THREAD)
        if self.exercise.goals:
            self._entering("goals")
            self._require_goals(self.counts().measure, lambda goal: "")
        on_gpu = self._built_by_nvcc()
        speed = self._measure_speed(on_gpu) if on_gpu is not None and has_gpu() else []
        return "speed" if speed else "nvcc" if on_gpu is not None else "goals", speed

    def counts(self) -> ProgramCounts:
        """Return the counts of a build that counts launches, copies and memory accesses."""
        if self._counts is None:
            program = self._built("counting")
            self._counts = access_counts.read_counts(self._run(program).output, program, self.file)
        return self._counts

    @property
    def counted(self) -> ProgramCounts | None:
        """The counts, if the check came far enough to count."""
        return self._counts

    def _require_parses(self) -> None:
        self._entering("parses")
        if "\0" in self._source():  # as in UTF-16
            raise StageFailure("parses", NOT_UTF_8.format(self.file.name))
        for number, line in enumerate(self._source().splitlines(), 1):
            if _GAP.search(line):
                raise StageFailure("parses", f"{self.file.name}:{number} is a gap to fill:\n    {line.strip()}")

    def _require_accepted_by_nvcc(self) -> None:
        """Require what nvcc would: a C++ compiler does not know which functions run on the GPU."""
        mistake = first_mistake(self._source())
        if mistake is not None:
            code = self._source().splitlines()[mistake.line - 1].strip()
            raise StageFailure("compiles", f"{self.file.name}:{mistake.line}\n    {code}\n{mistake.message}")

    def _require_no_race_between_blocks(self) -> None:
        """Require that no two blocks meet in memory. The blocks run in turn here, so the sanitizers see no race."""
        race = self.counts().race
        if race is not None:
            met = f"{self._quoted(race.place)}data race: blocks {race.first} and {race.second} {_BLOCKS_MEET}"
            raise StageFailure("runs", met)

    def _require_right(self, *results: _ProgramRun) -> None:
        for result in results:
            if result.status == _WRONG:
                raise StageFailure("right", _AT_THE_END.split(result.output)[0].strip())

    def _require_finished(self, result: _ProgramRun) -> None:
        """Require that the harness compared every case, and that kernels computed what it compared."""
        found = [one for one in _FINISHED.findall(result.output) if one[0] == result.number]
        if not found or int(found[-1][2]) or not int(found[-1][1]):
            raise StageFailure("runs", "The program ends before the results are compared. Let your function return.")
        cases, launches, copies = (int(found[-1][place]) for place in (1, 3, 4))
        if any(goal.metric in _COPY_METRICS for goal in self.exercise.goals):
            return
        if launches < cases:
            raise StageFailure("runs", "No kernel is launched. Let a kernel compute the result.")
        if copies:
            raise StageFailure("runs", "Your function copies memory with cudaMemcpy. Let a kernel compute the result.")

    def _source(self) -> str:
        return self.file.read_text(encoding="utf-8", errors="replace")

    def rewritten_source(self) -> str:
        """Return the learner's file as C++: launches and dynamic shared memory are not."""
        source = _DYNAMIC_SHARED.sub(_POINTER_TO_SHARED, without_comments(self._source()))
        return f'#line 1 "{self.file.name}"\n' + _LAUNCH.sub(r"launch(\1, \2)(", source)

    def _built(self, how: str) -> Path:
        """Build the program with the "address" or the "thread" sanitizer, or "counting" its accesses."""
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise ExerciseError("the CUDA track needs a C++20 compiler, but neither g++ nor clang++ is on the path")
        rewritten = self.file.with_name("rewritten.cpp")
        rewritten.write_text(self.rewritten_source())
        program = self.file.with_name(f"checked-{how}")
        options = ["-std=c++20", "-g1", "-pthread", f"-I{INCLUDES}"]
        if how != "counting":
            options += ["-O1", f"-fsanitize={how}", f"-D{how.upper()}_SANITIZER"]
            self._compile([compiler, "-x", "c++", *options, *self._harness(rewritten), "-o", str(program)])
            return program
        counted = self.file.with_name("counted.o")
        accesses = access_counts.counting_part(compiler, self.file.parent, self._compile)
        options += [*access_counts.COMPILE_OPTIONS, access_counts.INSTRUMENTATION]
        self._compile([compiler, "-c", "-x", "c++", *options, *self._harness(rewritten), "-o", str(counted)])
        self._compile([compiler, "-pthread", "-no-pie", str(counted), str(accesses), "-o", str(program)])
        return program

    def _built_by_nvcc(self) -> Path | None:
        """Build the program for a GPU; None where nvcc is not installed."""
        compiler = nvcc()
        if compiler is None:
            return None
        self._entering("nvcc")
        program = self.file.with_name("checked-on-gpu")
        # A copy of harness.h alone: our cuda_runtime.h beside the original would replace CUDA's own.
        shutil.copy(INCLUDES / "harness.h", self.file.parent)
        options = ["-std=c++17", "-O2", f"-I{self.file.parent}", *(["-arch=native"] if has_gpu() else [])]
        command = [compiler, *options, *self._harness(self.file), "-o", str(program)]
        self._compile(command, "nvcc", "Your file compiles as C++, but not with nvcc")
        return program

    def _measure_speed(self, program: Path) -> list[str]:
        """Run the same cases on this machine's GPU, and time the program beside its twin."""
        self._entering("speed")
        try:
            self._require_right(self._run(program))
            return self._timed_beside_twin(program)
        except StageFailure as failure:
            raise StageFailure(
                "speed", f"Your file passes without a GPU, but fails on this GPU: {failure}"
            ) from failure

    def _timed_beside_twin(self, program: Path) -> list[str]:
        from tilesmith.workshop.checking.gpu_timing import time_beside_twin
        from tilesmith.workshop.checking.triton_check import model_spec

        if self.exercise.twin is None:
            return []
        twin = load_exercise(self.exercise.folder.parent / self.exercise.twin)
        lines: list[str] = []
        for size in twin.timed:
            ran = self._run(program, *map(str, size.sizes.values()))
            self._require_right(ran)
            lines += time_beside_twin(
                float(ran.output.rpartition("milliseconds ")[2].split()[0]), model_spec(twin), size
            )
        return lines

    def _harness(self, learners: Path) -> list[str]:
        return [f'-DLEARNERS_FILE="{learners}"', str(self.exercise.folder / "harness.cu")]

    def _compile(self, command: list[str], stage: str = "compiles", what: str = "Your file does not compile") -> None:
        megabytes = MOST_MEGABYTES_OF_COMPILER[stage]
        try:
            made = subprocess.run(
                command, capture_output=True, text=True, cwd=self.file.parent, env={**os.environ, "LC_ALL": "C"},
                timeout=PATIENCE * SECONDS_TO_COMPILE, preexec_fn=partial(_limit, megabytes, SECONDS_TO_COMPILE),
            )  # fmt: skip
            is_late = made.returncode == -signal.SIGXCPU or "CPU time limit exceeded" in made.stderr
        except subprocess.TimeoutExpired:
            is_late = True
        if is_late:
            raise StageFailure(stage, f"{what} within {SECONDS_TO_COMPILE:g} s. What does it include?")
        if made.returncode and _NO_MEMORY.search(made.stderr):
            raise StageFailure(stage, f"{what} with {megabytes / 1024:g} GB of memory. What does it include?")
        if made.returncode:
            signature = host_signature(self.exercise.starter.read_text(encoding="utf-8"))
            raise StageFailure(stage, f"{what}: {first_error(made.stderr, self.file, signature)}")

    def _run(self, program: Path, *sizes: str) -> _ProgramRun:
        limit = f"hard_rss_limit_mb={MOST_MEGABYTES}"
        number = secrets.token_hex(8)
        quiet = {
            "ASAN_OPTIONS": f"detect_leaks=0:{limit}", "TSAN_OPTIONS": f"halt_on_error=1:{limit}",
            "TILESMITH_RUN": number,
        }  # fmt: skip
        late = StageFailure(
            "runs", f"The program was still running after {self.seconds_to_run:g} s. Is there a loop that never ends?"
        )
        try:
            made = subprocess.run(
                [program, *sizes], capture_output=True, text=True, env={**os.environ, **quiet},
                timeout=PATIENCE * self.seconds_to_run, preexec_fn=partial(_limit, None, self.seconds_to_run),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise late from None
        if made.returncode == -signal.SIGXCPU:
            raise late
        if "FATAL: ThreadSanitizer" in made.stderr:  # a problem of this machine, not of the learner's file
            raise ExerciseError(f"the thread sanitizer does not work on this machine: {made.stderr.strip()[:200]}")
        if "rss limit exhausted" in made.stderr:
            raise StageFailure("runs", f"The program took more than {MOST_MEGABYTES / 1024:g} GB of memory.")
        if made.returncode not in (0, _WRONG):
            raise StageFailure("runs", self._explained(made.stderr, made.returncode))
        return _ProgramRun(made.returncode, made.stdout, number)

    def _explained(self, report: str, status: int) -> str:
        """Return the sanitizer's finding with the learner's line and its meaning."""
        kind = _WARNINGS.search(report)
        if kind is None:
            lesson = "".join(f".\n{text}" for words, text in _REFUSED.items() if words in report)
            return f"The program ended with status {status}: {report.strip()[:300]}{lesson}"
        lesson = next((text for word, text in _LESSONS.items() if word in kind[0]), "")
        copy = re.search(r" in (cudaMem(?:cpy|set)\w*)", report.partition(self.file.name)[0])
        if lesson == _OUTSIDE and copy is not None:
            lesson = _COPIED_TOO_MUCH.format(copy[1])
        elif lesson == _OUTSIDE and "zero page" in report:
            lesson = _NULL
        return f"{self._quoted(report)}{kind[0]}. {lesson}".rstrip()

    def _quoted(self, report: str) -> str:
        """Return the first line of the learner's file that a report names, with its code; "" where it names none."""
        place = re.search(rf"{re.escape(self.file.name)}:(\d+)", report)
        line = self._source().splitlines()[int(place[1]) - 1].strip() if place else ""
        return f"{self.file.name}:{place[1]}\n    {line}\n" if place else ""


def _limit(megabytes: int | None, seconds: float) -> None:
    """Limit the address space and the CPU time of this process, which is about to become a compiler or a program."""
    if megabytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    whole = max(math.ceil(seconds), 1)
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 5))


def nvcc() -> str | None:
    """Return the path of nvcc: from the path, from CUDA_HOME, or from the usual folders; None where there is none."""
    home = os.environ.get("CUDA_HOME")
    folders = [os.environ.get("PATH", ""), *([f"{home}/bin"] if home else []), *_USUAL_FOLDERS]
    return shutil.which("nvcc", path=os.pathsep.join(folders))


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU."""
    import torch

    return torch.cuda.is_available() and torch.version.hip is None
