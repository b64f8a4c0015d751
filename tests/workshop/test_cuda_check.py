"""The CUDA track: checks of `.cu` files without a GPU, and their messages."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kept_builds import build_key

from tilesmith.lab.errors import CATALOGUE
from tilesmith.spec import Spec
from tilesmith.workshop.checking import gpu_timing
from tilesmith.workshop.checking.staged_check import StageFailure
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise import Exercise, ExerciseError, Goal, Size
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.cuda import check as cuda_check
from tilesmith.workshop.cuda.access_counts import ProgramCounts, counting_part
from tilesmith.workshop.cuda.check import CudaCheck

DYNAMIC = (
    ("    __shared__ float partial[THREADS];", "    extern __shared__ float partial[];"),
    ("<<<blocks, THREADS>>>", "<<<blocks, THREADS, THREADS * sizeof(float)>>>"),
)

pytestmark = [
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"),
    pytest.mark.usefixtures("kept_builds"),
]


@pytest.fixture(autouse=True)
def _no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide an installed nvcc, which would change the results and the duration of these tests."""
    monkeypatch.setattr(cuda_check, "nvcc", lambda: None)


@pytest.fixture
def reduction() -> Exercise:
    return load_exercise(BUILT_IN / "cuda-reduction")


@pytest.fixture
def passes(tmp_path: Path) -> Path:
    """Return a program that ends like one whose results are right."""
    program = tmp_path / "passes"
    counts = "cases=1 alive=0 launches=1 copies=0"
    program.write_text(f'#!/bin/sh\necho "run $TILESMITH_RUN {counts}"\necho "counts {counts} blocks=1 threads=64"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, passes: Path) -> Callable[[str], None]:
    """Return a function that makes only one build real; the other builds, which take seconds each, pass."""
    build = CudaCheck._built

    def built(wanted: str) -> None:
        monkeypatch.setattr(CudaCheck, "_built", lambda check, how: build(check, how) if how == wanted else passes)

    return built


def check_of(exercise: Exercise, folder: Path, *changes: tuple[str, str]) -> CudaCheck:
    source = exercise.solution.read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    file = folder / exercise.file_name
    file.write_text(source)
    return CudaCheck(exercise, file)


def test_dynamic_shared_memory_has_the_size_of_the_launch(
    reduction: Exercise, tmp_path: Path, only: Callable[[str], None]
) -> None:
    """`test_template_with_shuffles_and_dynamic_shared_memory_passes` has enough."""
    only("address")
    too_small = check_of(reduction, tmp_path, *DYNAMIC, ("THREADS * sizeof(float)", "THREADS")).verdict()
    assert too_small.stage == "runs"
    assert "outside of what was allocated" in too_small.message


@pytest.mark.slow
def test_launch_with_too_many_threads_is_an_error(
    reduction: Exercise, tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("address")
    verdict = check_of(reduction, tmp_path, ("const int THREADS = 64;", "const int THREADS = 2048;")).verdict()
    assert verdict.stage == "runs"
    assert "invalid configuration" in verdict.message
    assert "a block has 1 to 1,024 threads" in verdict.message


def verdict(exercise: Exercise, folder: Path, *changes: tuple[str, str]) -> Verdict:
    return check_of(exercise, folder, *changes).verdict()


def test_solution_passes_and_its_blocks_are_counted(reduction: Exercise, tmp_path: Path) -> None:
    check = check_of(reduction, tmp_path)
    assert check.verdict().passed
    counts = check.counts().counts
    assert (counts["launches"], counts["blocks"], counts["threads"]) == (3, 20, 20 * 64)
    assert counts["atomics"] == 20
    assert counts["barriers"] == 20 * 7  # 20 blocks, a barrier before the six rounds and one in each


def test_accesses_are_counted_per_warp_and_missed_goal_names_the_line(
    tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("counting")
    shared = load_exercise(BUILT_IN / "cuda-transpose-shared")
    check = check_of(shared, tmp_path, ("tile[SIDE][SIDE + 1]", "tile[SIDE][SIDE]"))
    found, counts = check.verdict(), check.counts()
    load_x, store_out = counts.access("load", "global"), counts.access("store", "global")
    # 32 × 32 floats are 128 sectors of 32 bytes, requested by 32 warps.
    assert [(one.requests, one.moved, one.least) for one in (load_x, store_out)] == [(32, 128, 128)] * 2
    down_a_column, along_a_row = counts.access("load", "shared"), counts.access("store", "shared")
    assert (down_a_column.requests, down_a_column.moved, down_a_column.least) == (32, 32 * 32, 32)
    assert (along_a_row.moved, along_a_row.least) == (32, 32)
    source = (tmp_path / shared.file_name).read_text().splitlines()
    assert "= tile[threadIdx.x][row]" in source[int(down_a_column.place.partition(":")[2]) - 1]
    assert found.stage == "goals"
    assert f"bank_conflicts is 992 (the load on {down_a_column.place}); wanted ≤ 0" in found.message
    assert [goal.met for goal in found.goals] == [True, False]


def test_unknown_metric_error_lists_the_known_metrics() -> None:
    with pytest.raises(
        ExerciseError, match="there is no metric 'beauty'; the metrics for CUDA are bank_conflicts, copies, g"
    ):
        ProgramCounts({"copies": 1}, ()).measure(Goal("beauty", "", at_least=1))


def test_missing_barrier_is_reported_as_race_with_its_line(
    reduction: Exercise, tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("thread")
    found = verdict(reduction, tmp_path, ("        }\n        __syncthreads();\n", "        }\n"))
    assert (found.passed, found.stage) == (False, "runs")
    assert "data race" in found.message
    # The sanitizer reports either of the two accesses; both are to this array.
    assert "partial[" in found.message


@pytest.mark.parametrize(
    "update",
    [
        "*total += partial[0];",
        pytest.param("*total = *total + partial[0];", marks=pytest.mark.slow),  # the same load and store
        "if (*total == 0.0f) atomicAdd(total, partial[0]);",
    ],
    ids=["plus", "load-and-store", "load-beside-atomic"],
)
def test_race_between_blocks_is_reported_with_its_line(
    update: str, reduction: Exercise, tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("counting")
    found = verdict(reduction, tmp_path, ("atomicAdd(total, partial[0]);", update))
    assert (found.passed, found.stage) == (False, "runs")
    assert update in found.message
    assert "data race: blocks 0 and 1 access the same address" in found.message
    assert "atomicAdd" in found.message


def test_sum_into_unwritten_memory_names_cudamemset(
    reduction: Exercise, tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("address")
    found = verdict(reduction, tmp_path, ("    cudaMemset(total, 0, sizeof(float));\n", ""))
    assert found.stage == "right"
    assert "atomicAdd added to memory that nobody had written" in found.message


def test_one_thread_for_all_elements_fails_at_goals(tmp_path: Path, only: Callable[[str], None]) -> None:
    only("counting")
    silu = load_exercise(BUILT_IN / "cuda-silu")
    found = verdict(
        silu, tmp_path,
        ("int element = blockIdx.x * blockDim.x + threadIdx.x;", ""),
        ("if (element < elements) {", "for (int element = 0; element < elements; ++element) {"),
        ("<<<blocks, threads>>>", "<<<1, 1>>>"),
    )  # fmt: skip
    assert (found.passed, found.stage) == (False, "goals")
    assert "each launch has a single thread" in found.message


def test_access_out_of_bounds_is_reported_with_its_line(reduction: Exercise, tmp_path: Path) -> None:
    found = verdict(reduction, tmp_path, ("element < elements ? x[element] : 0.0f", "x[element]"))
    assert found.stage == "runs"
    assert "heap-buffer-overflow" in found.message
    assert "partial[thread] = x[element];" in found.message


def test_null_pointer_and_too_large_copy_are_named_as_such(tmp_path: Path) -> None:
    silu = load_exercise(BUILT_IN / "cuda-silu")
    null = verdict(silu, tmp_path, (">>>(x,", ">>>(nullptr,"))
    assert "The address is 0 or close to it." in null.message
    launch = "    silu_kernel<<<"
    copy = "    cudaMemset(out, 0, elements * 8);\n"
    copied = verdict(silu, tmp_path, (launch, copy + launch))
    assert "cudaMemset reads or writes outside of what was allocated." in copied.message
    copy = "    cudaMemcpy(out, out + 1, elements * 4, cudaMemcpyDeviceToDevice);\n"
    overlapping = verdict(silu, tmp_path, (launch, copy + launch))
    assert "The source and the target of a copy overlap." in overlapping.message
    for found in (null, copied, overlapping):
        assert found.stage == "runs"
        assert "Which threads" not in found.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= threadIdx.x;\n", "= threadIdx.x;\n    if (thread > 40) return;\n"),
        pytest.param(
            "        }\n        __syncthreads();\n", "            __syncthreads();\n        }\n", marks=pytest.mark.slow
        ),
        pytest.param(
            "    __syncthreads();\n    for",
            "    if (thread < 9) __syncthreads();\n    else\n__syncthreads();\n    for",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_barrier_that_some_threads_skip_is_reported_with_its_line(
    reduction: Exercise, tmp_path: Path, only: Callable[[str], None], old: str, new: str
) -> None:
    only("address")
    found = verdict(reduction, tmp_path, (old, new))
    assert found.stage == "runs"
    assert "cuda_reduction.cu:1" in found.message
    assert "__syncthreads();\ndivergent barrier. Only some threads of the block" in found.message


def test_unwritten_shared_memory_is_no_zero(reduction: Exercise, tmp_path: Path, only: Callable[[str], None]) -> None:
    only("thread")
    found = verdict(reduction, tmp_path, ("= element < elements ? x[element] : 0.0f;", "= x[element];"),
                    ("    partial[thread]", "    if (element < elements) partial[thread]"))  # fmt: skip
    assert found.stage == "right"
    assert "comes from memory that no thread has written" in found.message


@pytest.mark.slow  # the test of the solution has a count of them, that of accesses a missed goal
def test_too_many_atomics_fail_at_goals(reduction: Exercise, tmp_path: Path, only: Callable[[str], None]) -> None:
    only("counting")
    found = verdict(reduction, tmp_path, ("    if (thread == 0) {", "    atomicAdd(total, 0);\n    if (thread == 0) {"))
    assert "atomics is 1300; wanted ≤ 20" in found.message


def test_counting_part_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def run(command: list[str]) -> None:
        compiled.append(command)
        Path(command[-1]).write_bytes(b"object")

    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    found = [counting_part(compiler, tmp_path, run) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].read_bytes() == b"object"
    assert len(compiled) == 1
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "file"))  # no folder can be made there
    assert counting_part(compiler, tmp_path, run) == tmp_path / "accesses.o"


def test_other_options_or_another_source_are_another_build(tmp_path: Path) -> None:
    source = tmp_path / "source.cpp"
    source.write_text("int one;")
    command = [sys.executable, "-O1", f'-DLEARNERS_FILE="{source}"', "-o", "program"]
    first = build_key(command, tmp_path)
    assert build_key(command, tmp_path) == first
    assert build_key([command[0], "-O2", *command[2:]], tmp_path) != first
    source.write_text("int two;")
    assert build_key(command, tmp_path) != first


def test_compiler_that_waits_is_not_late_but_one_that_computes_is(
    reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU time counts: a busy machine refuses no file."""
    monkeypatch.setattr(cuda_check, "SECONDS_TO_COMPILE", 1.0)
    check = cuda_check.CudaCheck(reduction, tmp_path / "reduction.cu")
    check._compile(["sleep", "1.5"])
    with pytest.raises(StageFailure, match="Your file does not compile within 1 s"):
        check._compile(["sh", "-c", "while :; do :; done"])


def test_endless_loop_fails_at_runs(reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaCheck, "seconds_to_run", 0.5)
    found = verdict(reduction, tmp_path, ("half > 0; half /= 2", "half > -1; half /= 2"))
    assert found.stage == "runs"
    assert "still running" in found.message


@pytest.mark.slow
def test_endless_allocation_fails_at_runs(reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "MOST_MEGABYTES", 256)
    line = "    const int thread = threadIdx.x;\n"
    hoard = "    for (;;) { char* more = new char[1 << 20]; memset(more, 1, 1 << 20); }\n"
    found = verdict(reduction, tmp_path, (line, f"{line}{hoard}"))
    assert (found.stage, found.message) == ("runs", "The program took more than 0.25 GB of memory.")


def test_compile_error_names_the_line(reduction: Exercise, tmp_path: Path) -> None:
    found = verdict(reduction, tmp_path, ("atomicAdd(total, partial[0]);", "total += partial[0]"))
    assert found.stage == "compiles"
    assert "cuda_reduction.cu:" in found.message


def test_gap_fails_at_parses(reduction: Exercise, tmp_path: Path) -> None:
    file = tmp_path / reduction.file_name
    shutil.copy(reduction.starter, file)
    found = CudaCheck(reduction, file).verdict()
    assert found.stage == "parses"
    assert "cuda_reduction.cu:11 is a gap to fill" in found.message


def test_missing_compiler_raises_exercise_error(
    reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesmith.workshop.cuda.check.shutil.which", lambda name: None)
    with pytest.raises(ExerciseError, match=r"needs a C\+\+20 compiler"):
        verdict(reduction, tmp_path)


def test_broken_sanitizer_raises_exercise_error(
    reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'FATAL: ThreadSanitizer: unexpected memory mapping' >&2\nexit 66\n")
    program.chmod(0o755)
    monkeypatch.setattr(CudaCheck, "_built", lambda self, sanitizer: program)
    with pytest.raises(ExerciseError, match="thread sanitizer does not work on this machine"):
        verdict(reduction, tmp_path)


NVCC_IN_NAME = """#!{python}
import os, re, subprocess, sys
words = sys.argv[1:]
assert "-std=c++17" in words
at = next(number for number, word in enumerate(words) if word.startswith("-DLEARNERS_FILE="))
learners = words[at].partition("=")[2].strip('"')
source = open(learners).read()
if "__device_only" in source:
    line = source[: source.index("__device_only")].count("\\n") + 1
    sys.exit(f'{{learners}}({{line}}): error: identifier "__device_only" is undefined')
rewritten = os.path.join(os.path.dirname(learners), "for-nvcc.cpp")
open(rewritten, "w").write(re.sub(r"(\\w+)\\s*<<<(.*?)>>>\\s*\\(", r"launch(\\1, \\2)(", source))
words[at] = f'-DLEARNERS_FILE="{{rewritten}}"'
words = [word for word in words if not word.startswith(("-std", "-arch", "-O"))]
sys.exit(subprocess.run(["g++", "-DON_GPU", "-std=c++20", "-pthread", "-I{includes}", "-x", "c++", *words]).returncode)
"""


class TestWithNvcc:
    """nvcc is a script that calls g++, and the GPU is this computer."""

    @pytest.fixture(autouse=True)
    def _nvcc(self, _no_nvcc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: Path) -> None:
        script = tmp_path / "cuda" / "bin" / "nvcc"
        script.parent.mkdir(parents=True)
        script.write_text(NVCC_IN_NAME.format(python=sys.executable, includes=cuda_check.INCLUDES))
        script.chmod(0o755)
        monkeypatch.setattr(cuda_check, "nvcc", lambda: str(script))
        # The builds before nvcc have tests above, and are slow.
        monkeypatch.setattr(CudaCheck, "_built", lambda check, how: passes)

    @pytest.fixture
    def silu(self, tmp_path: Path) -> Exercise:
        """Return the exercise with its twin, timed on a size that is small enough for system threads."""
        for name in ("cuda-silu", "silu"):
            shutil.copytree(BUILT_IN / name, tmp_path / "set" / name)
        about_the_twin = tmp_path / "set" / "silu" / "exercise.toml"
        content = about_the_twin.read_text()
        assert "elements = 33554432" in content
        about_the_twin.write_text(content.replace("elements = 33554432", "elements = 96"))
        return load_exercise(tmp_path / "set" / "cuda-silu")

    @pytest.fixture
    def gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cuda_check, "has_gpu", lambda: True)

        def time_beside_twin(milliseconds: float, twin: Spec, size: Size) -> list[str]:
            assert 0 < milliseconds < 10_000
            return [f"{twin.name} on {dict(size.sizes)}", f"is {twin.op.__name__}"]

        monkeypatch.setattr(gpu_timing, "time_beside_twin", time_beside_twin)

    @pytest.mark.slow
    def test_passes_at_nvcc_without_a_gpu(self, silu: Exercise, tmp_path: Path) -> None:
        found = verdict(silu, tmp_path)
        assert (found.passed, found.stage, found.speed) == (True, "nvcc", [])

    def test_error_of_nvcc_alone_fails_at_nvcc_with_its_message(self, silu: Exercise, tmp_path: Path) -> None:
        found = verdict(
            silu, tmp_path, ("    if (element < elements)", "    // __device_only\n    if (element < elements)")
        )
        assert (found.passed, found.stage) == (False, "nvcc")
        (qualifier,) = [one.text for one in CATALOGUE if one.name == "cuda-qualifier"]
        assert found.message == (
            "Your file compiles as C++, but not with nvcc: cuda_silu.cu:5\n    // __device_only\n"
            f'identifier "__device_only" is undefined. {qualifier}'
        )

    def test_with_a_gpu_the_program_is_timed_beside_its_twin(self, silu: Exercise, tmp_path: Path, gpu: None) -> None:
        stages: list[str] = []
        check = check_of(silu, tmp_path)
        found = CudaCheck(silu, check.file, stages.append).verdict()
        assert (found.passed, found.stage, found.message) == (True, "speed", "")
        assert stages == ["parses", "compiles", "runs", "goals", "nvcc", "speed"]
        assert found.speed == ["silu on {'elements': 96, 'spread': 1}", "is silu"]

    @pytest.mark.parametrize("size", [pytest.param("100", marks=pytest.mark.slow), "96"])
    def test_wrong_result_on_the_gpu_fails_at_speed(self, silu: Exercise, tmp_path: Path, gpu: None, size: str) -> None:
        """The result is wrong on one of the cases, or on the timed size only."""
        only_there = f"""
#ifdef ON_GPU
    if (elements == {size}) elements = 1;
#endif
    if (element < elements)"""
        found = verdict(silu, tmp_path, ("    if (element < elements)", only_there))
        assert (found.passed, found.stage, found.speed) == (False, "speed", [])
        assert found.message == (
            "Your file passes without a GPU, but fails on this GPU: "
            f"Element 1 of the result was not written by any thread (tried with elements = {size})."
        )

    @pytest.mark.slow
    def test_cuda_error_is_part_of_the_message(self, silu: Exercise, tmp_path: Path, gpu: None) -> None:
        includes = tmp_path / "includes"
        shutil.copytree(cuda_check.INCLUDES, includes)
        header = includes / "host_functions.h"
        succeeds = "const cudaError_t error = cudaPeekAtLastError();"
        assert succeeds in header.read_text()
        header.write_text(header.read_text().replace(succeeds, "const cudaError_t error = cudaErrorMemoryAllocation;"))
        script = Path(str(cuda_check.nvcc()))
        script.write_text(script.read_text().replace(str(cuda_check.INCLUDES), str(includes)))
        found = verdict(replace(silu, twin=None), tmp_path)  # the cases fail before anything is timed
        assert found.stage == "speed"
        assert found.message.endswith("The program ended with status 1: out of memory")


def test_nvcc_is_found_on_path_then_cuda_home_then_usual_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # undo _no_nvcc
    places = [tmp_path / "path", tmp_path / "home" / "bin", tmp_path / "installed"]
    monkeypatch.setenv("PATH", str(places[0]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cuda_check, "_USUAL_FOLDERS", (str(places[2]),))
    assert cuda_check.nvcc() is None
    for place in reversed(places):
        place.mkdir(parents=True)
        (place / "nvcc").touch(0o755)
        assert cuda_check.nvcc() == str(place / "nvcc")


def test_missing_twin_is_refused(tmp_path: Path) -> None:
    shutil.copytree(BUILT_IN / "cuda-silu", tmp_path / "cuda-silu")
    with pytest.raises(ExerciseError, match="the twin is 'silu', but no exercise with this id lies beside it"):
        load_exercise(tmp_path / "cuda-silu")


SHUFFLES = (
    ("    partial[thread] = element < elements ? x[element] : 0.0f;", """
    float value = element < elements ? x[element] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffff, value, offset);
    if (thread % 32 == 0) partial[thread / 32] = value;"""),
    ("for (int half = THREADS / 2;", "for (int half = THREADS / 64;"),
)  # fmt: skip


def test_shuffle_with_a_lane_that_has_returned_fails_at_runs(
    reduction: Exercise, tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("address")
    early = ("    float value =", "    if (element >= elements) return;\n    float value =")
    found = verdict(reduction, tmp_path, *SHUFFLES, early)
    assert found.stage == "runs"
    assert "divergent shuffle. The mask of this shuffle names a lane that has returned" in found.message


def test_template_with_shuffles_and_dynamic_shared_memory_passes(
    reduction: Exercise, tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("address")
    template = "template <typename T>\n__global__ void __launch_bounds__(64) sum_kernel("
    changes = (("__global__ void sum_kernel(", template), ("sum_kernel<<<", "sum_kernel<float><<<"))
    comment = ("// Computes", "// sum_kernel<<<blocks is a launch. Computes")
    found = verdict(replace(reduction, goals=()), tmp_path, *SHUFFLES, *DYNAMIC, *changes, comment)
    assert found.message == ""


@pytest.mark.parametrize(("waited", "missed"), [("turn < STREAMS", []), ("turn < 1", ["implicit_waits"])])
def test_event_waits_for_its_own_stream(
    waited: str, missed: list[str], tmp_path: Path, only: Callable[[str], None]
) -> None:
    only("counting")
    found = verdict(
        load_exercise(BUILT_IN / "cuda-streams"), tmp_path,
        ("        error = cudaDeviceSynchronize();\n", f"""
        for (int turn = 0; {waited}; ++turn) {{
            cudaEvent_t done;
            cudaEventCreate(&done);
            cudaEventRecord(done, streams[turn]);
            cudaEventSynchronize(done);
            cudaEventDestroy(done);
        }}
"""),
    )  # fmt: skip
    assert [goal.name for goal in found.goals if not goal.met and goal.name == "implicit_waits"] == missed


def test_event_orders_two_streams(tmp_path: Path, only: Callable[[str], None]) -> None:
    """One event is recorded twice: each wait is for the last recording before it."""
    only("counting")
    found = verdict(
        load_exercise(BUILT_IN / "cuda-streams"), tmp_path,
        ("        silu_kernel<<<blocks, THREADS, 0, streams[turn]>>>", """
        const cudaStream_t other = streams[(turn + 1) % STREAMS];
        cudaEvent_t event;
        cudaEventCreate(&event);
        cudaEventRecord(event, streams[turn]);
        cudaStreamWaitEvent(other, event, 0);
        silu_kernel<<<blocks, THREADS, 0, other>>>"""),
        ("        cudaMemcpyAsync(y", """
        cudaEventRecord(event, other);
        cudaStreamWaitEvent(streams[turn], event);
        cudaMemcpyAsync(y"""),
    )  # fmt: skip
    assert found.passed, found.message
