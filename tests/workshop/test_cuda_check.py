"""The CUDA track: `.cu` files are checked without a GPU, and what is wrong with them is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilesmith.workshop import cuda_check
from tilesmith.workshop.catalogue import OURS
from tilesmith.workshop.cuda_check import CudaCheck
from tilesmith.workshop.cuda_figures import Figures
from tilesmith.workshop.exercise import Exercise, ExerciseError, Goal, load
from tilesmith.workshop.verdict import Verdict

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether nvcc is here must not change what these tests show, nor how long they take."""
    which = shutil.which
    monkeypatch.setattr(
        "tilesmith.workshop.cuda_check.shutil.which", lambda name: None if name == "nvcc" else which(name)
    )


@pytest.fixture
def reduction() -> Exercise:
    return load(OURS / "cuda-reduction")


def check_of(exercise: Exercise, folder: Path, *changes: tuple[str, str]) -> CudaCheck:
    source = exercise.solution.read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    file = folder / exercise.file_name
    file.write_text(source)
    return CudaCheck(exercise, file)


def verdict(exercise: Exercise, folder: Path, *changes: tuple[str, str]) -> Verdict:
    return check_of(exercise, folder, *changes).verdict()


def test_a_solution_passes_and_its_blocks_are_counted(reduction: Exercise, tmp_path: Path) -> None:
    check = check_of(reduction, tmp_path)
    assert check.verdict().passed
    counts = check.figures().counts
    assert (counts["launches"], counts["blocks"], counts["threads"]) == (3, 6, 6 * 64)
    assert counts["barriers"] == 6 * 7  # six blocks, a barrier before the six rounds and one in each


def test_accesses_are_counted_warp_by_warp_and_a_missed_goal_names_the_line(tmp_path: Path) -> None:
    shared = load(OURS / "cuda-transpose-shared")
    check = check_of(shared, tmp_path, ("tile[SIDE][SIDE + 1]", "tile[SIDE][SIDE]"))
    found, figures = check.verdict(), check.figures()
    load_x, store_out = figures.access("load", "global"), figures.access("store", "global")
    # 32 × 32 floats are 128 sectors of 32 bytes, asked for by 32 warps.
    assert [(one.requests, one.moved, one.least) for one in (load_x, store_out)] == [(32, 128, 128)] * 2
    down_a_column, along_a_row = figures.access("load", "shared"), figures.access("store", "shared")
    assert (down_a_column.requests, down_a_column.moved, down_a_column.least) == (32, 32 * 32, 32)
    assert (along_a_row.moved, along_a_row.least) == (32, 32)
    source = (tmp_path / shared.file_name).read_text().splitlines()
    assert "= tile[threadIdx.x][row]" in source[int(down_a_column.place.partition(":")[2]) - 1]
    assert found.stage == "goals"
    assert f"bank_conflicts is 992 (the load on {down_a_column.place}); wanted ≤ 0" in found.message
    assert [goal.met for goal in found.goals] == [True, False]


def test_an_unknown_metric_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ExerciseError, match="no metric is called 'beauty'; in CUDA there are bank_conflicts, copies, s"
    ):
        Figures({"copies": 1}, ()).measure(Goal("beauty", "", at_least=1))


def test_a_missing_barrier_is_a_race_with_its_line(reduction: Exercise, tmp_path: Path) -> None:
    found = verdict(reduction, tmp_path, ("        }\n        __syncthreads();\n", "        }\n"))
    assert (found.passed, found.stage) == (False, "runs")
    assert "data race" in found.message
    # Which of the two accesses the sanitizer meets first is chance; both are to this array.
    assert "partial[" in found.message


def test_an_access_outside_of_memory_is_named(reduction: Exercise, tmp_path: Path) -> None:
    found = verdict(reduction, tmp_path, ("element < elements ? x[element] : 0.0f", "x[element]"))
    assert found.stage == "runs"
    assert "heap-buffer-overflow" in found.message
    assert "partial[thread] = x[element];" in found.message


def test_a_barrier_that_some_threads_leave_out_does_not_hang(reduction: Exercise, tmp_path: Path) -> None:
    line = "    const int thread = threadIdx.x;\n"
    found = verdict(reduction, tmp_path, (line, f"{line}    if (thread > 40) return;\n"))
    assert found.stage == "right"


def test_a_loop_that_never_ends_is_ended(reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "SECONDS_TO_RUN", 2.0)
    found = verdict(reduction, tmp_path, ("half > 0; half /= 2", "half > -1; half /= 2"))
    assert found.stage == "runs"
    assert "still running" in found.message


def test_memory_without_end_is_ended(reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "MOST_MEGABYTES", 256)
    line = "    const int thread = threadIdx.x;\n"
    hoard = "    for (;;) { char* more = new char[1 << 20]; memset(more, 1, 1 << 20); }\n"
    found = verdict(reduction, tmp_path, (line, f"{line}{hoard}"))
    assert (found.stage, found.message) == ("runs", "It took more than 0.25 GB of memory.")


def test_what_is_not_c_plus_plus_is_said_with_its_line(reduction: Exercise, tmp_path: Path) -> None:
    found = verdict(reduction, tmp_path, ("atomicAdd(total, partial[0]);", "total += partial[0]"))
    assert found.stage == "compiles"
    assert "cuda_reduction.cu:" in found.message


def test_a_gap_is_found_before_anything_is_compiled(reduction: Exercise, tmp_path: Path) -> None:
    file = tmp_path / reduction.file_name
    shutil.copy(reduction.starter, file)
    found = CudaCheck(reduction, file).verdict()
    assert found.stage == "parses"
    assert "cuda_reduction.cu:11 is still to be written" in found.message


def test_a_machine_without_a_compiler_is_told_so(
    reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesmith.workshop.cuda_check.shutil.which", lambda name: None)
    with pytest.raises(ExerciseError, match=r"needs a C\+\+20 compiler"):
        verdict(reduction, tmp_path)


def test_a_sanitizer_that_does_not_work_here_is_not_the_learners_fault(
    reduction: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'FATAL: ThreadSanitizer: unexpected memory mapping' >&2\nexit 66\n")
    program.chmod(0o755)
    monkeypatch.setattr(CudaCheck, "_built", lambda self, sanitizer: program)
    with pytest.raises(ExerciseError, match="thread sanitizer does not work on this machine"):
        verdict(reduction, tmp_path)
