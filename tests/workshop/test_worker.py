"""Harmful files: the check survives, and explains what happened in one to three lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from triton.runtime.cache import triton_key

from forked import forking
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.isolation import process_use
from tilesmith.workshop.isolation.worker import Limits, Outcome, Worker, without_control_characters

EXERCISE = load_exercise(BUILT_IN / "vector-add")
SOLUTION = EXERCISE.solution.read_text()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with forking(), Worker(Limits(seconds=60, gigabytes=1)) as started:
        yield started


def checked(worker: Worker, folder: Path, source: str) -> Outcome:
    file = folder / "vector_add.py"
    file.write_text(source)
    return worker.check(EXERCISE, file)


def inside(line: str) -> str:
    """Return the solution with an extra line in its function."""
    return SOLUTION.replace("    out = torch.empty_like(x)\n", f"    {line}\n    out = torch.empty_like(x)\n")


def assert_survived(outcome: Outcome, words: str) -> None:
    assert not outcome.verdict.passed
    assert outcome.verdict.stage == "runs"
    assert words in outcome.verdict.message, outcome.verdict.message
    assert len(outcome.verdict.message.splitlines()) <= 3


def test_solution_passes_and_its_output_is_shown(worker: Worker, tmp_path: Path) -> None:
    outcome = checked(worker, tmp_path, inside('print("\\x1b[2J\\x1b]0;title\\x07looking at", x.shape)'))
    assert outcome.verdict.passed, outcome.verdict.message
    assert "looking at torch.Size([256])" in outcome.printed
    assert "\x1b" not in outcome.printed
    assert "title" not in outcome.printed


def test_tritons_files_are_hashed_once_for_all_checks(tmp_path: Path) -> None:
    with forking(), Worker() as started:
        triton_key.cache_clear()
        told = checked(started, tmp_path, inside("import triton; print(triton.runtime.cache.triton_key.cache_info())"))
    assert "currsize=1" in told.printed.partition("\n")[0], told


def test_escape_codes_in_a_message_do_not_reach_the_terminal(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message about a wrong CUDA result contains output of the program."""
    verdict = Verdict("vector-add", False, "right", "\x1b[2JElement 0 is 1\x07")
    monkeypatch.setattr(
        worker, "_ask", lambda *given, **more: ({"verdict": verdict.as_json(), "quiz": None, "figures": {}}, "")
    )
    assert checked(worker, tmp_path, SOLUTION).verdict.message == "Element 0 is 1"


def test_sys_exit_fails_at_runs(worker: Worker, tmp_path: Path) -> None:
    assert_survived(checked(worker, tmp_path, inside("raise SystemExit(0)")), "sys.exit: vector_add.py:18")
    assert_survived(checked(worker, tmp_path, f"import sys\nsys.exit(3)\n{SOLUTION}"), "while Python imports the file")


def test_impossible_allocation_fails_at_runs(worker: Worker, tmp_path: Path) -> None:
    outcome = checked(worker, tmp_path, inside("torch.empty(1 << 52)"))
    assert_survived(outcome, "GB of memory, more than this machine has: vector_add.py:18")


def test_memory_limit_ends_the_file(worker: Worker, tmp_path: Path) -> None:
    source = inside("hoard = [torch.ones(1 << 23) for _ in range(800)]")  # 32 MB each, 25 GB in all
    assert_survived(checked(worker, tmp_path, source), "took more than 1 GB of memory, at vector_add.py:18")


@pytest.mark.usefixtures("forked")
def test_memory_of_the_child_before_the_check_does_not_count(worker: Worker, tmp_path: Path) -> None:
    checked(worker, tmp_path, SOLUTION)  # compiles: below, a compiler that starts would share the child's memory
    held = b"x" * (1 << 30)  # in the child too, which is a fork
    with Worker(Limits(seconds=60, gigabytes=1)) as started:
        outcome = checked(started, tmp_path, SOLUTION)
    assert outcome.verdict.passed, outcome.verdict.message
    assert held


@pytest.mark.usefixtures("forked")
def test_time_limit_ends_the_file_and_names_the_line(tmp_path: Path) -> None:
    with Worker(Limits(seconds=1, gigabytes=2)) as worker:
        outcome = checked(worker, tmp_path, inside("while True: pass"))
    assert_survived(outcome, "was still running after 1 s, at vector_add.py:18")


def test_sleeping_counts_and_waiting_for_a_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    states = iter([("R", 0.5), ("R", 0.5), ("S", 0.5), ("S", 0.75)])
    monkeypatch.setattr(process_use, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(process_use, "_state_and_seconds", lambda process: next(states))
    spent = process_use.OwnTime()
    assert [spent.spent([1]) for _ in range(4)] == [0.5, 0.5, 1.5, 1.75]


@pytest.mark.usefixtures("forked")
def test_file_that_sleeps_is_ended_too(tmp_path: Path) -> None:
    with Worker(Limits(seconds=1, gigabytes=2)) as worker:
        outcome = checked(worker, tmp_path, inside("import time; time.sleep(100)"))
    assert_survived(outcome, "was still running after 1 s")


def test_time_of_a_cpp_compiler_does_not_count_as_the_files_own(tmp_path: Path) -> None:
    file = tmp_path / "cuda_silu.cu"
    file.write_text("#include <cuda_runtime.h>\nvoid silu(;\n")
    with forking(), Worker(Limits(seconds=0.01)) as short_of_time:
        verdict = short_of_time.check(load_exercise(BUILT_IN / "cuda-silu"), file).verdict
    assert verdict.stage == "compiles"
    assert "cuda_silu.cu:2" in verdict.message


def test_os_exit_fails_at_runs(worker: Worker, tmp_path: Path) -> None:
    assert_survived(checked(worker, tmp_path, inside("import os; os._exit(0)")), "status 0")


def test_deleting_the_copys_folder_keeps_the_work(worker: Worker, tmp_path: Path) -> None:
    source = inside("import pathlib, shutil; shutil.rmtree(pathlib.Path(__file__).parent)")
    assert_survived(checked(worker, tmp_path, source), "deletes the folder it is in")
    assert (tmp_path / "vector_add.py").read_text() == source


def test_deleted_work_is_restored(worker: Worker, tmp_path: Path) -> None:
    source = inside(f"import shutil; shutil.rmtree({str(tmp_path)!r})")
    assert_survived(checked(worker, tmp_path, source), "The check restored vector_add.py")
    assert (tmp_path / "vector_add.py").read_text() == source


def test_file_renamed_during_a_check_is_not_blamed_for_it(worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "vector_add.py"
    file.write_text(SOLUTION)

    def rename(stage: str) -> None:
        if file.exists():
            file.rename(tmp_path / "better_name.py")

    message = worker.check(EXERCISE, file, entering=rename).verdict.message
    assert "deleted or renamed during the check: by your file itself, or by another program" in message


def test_file_saved_during_a_check_is_kept(worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "vector_add.py"
    file.write_text(SOLUTION)

    def save(stage: str) -> None:
        file.write_text("saved meanwhile")

    outcome = worker.check(EXERCISE, file, entering=save)
    assert outcome.verdict.passed
    assert file.read_text() == "saved meanwhile"


@pytest.fixture(scope="module")
def warm_worker() -> Iterator[Worker]:
    with forking(), Worker(Limits(seconds=200, gigabytes=1), warm=True) as started:
        yield started


def test_warm_worker_runs_every_file_in_an_unchanged_process(warm_worker: Worker, tmp_path: Path) -> None:
    spoils = inside('import builtins; builtins.spoilt = 1; tl.load = None; print("spoilt")')
    assert "spoilt" in checked(warm_worker, tmp_path, spoils).printed
    before = warm_worker.process_id
    outcome = checked(warm_worker, tmp_path, inside('assert "spoilt" not in dir(__builtins__)'))
    assert outcome.verdict.passed, outcome.verdict.message
    assert warm_worker.process_id == before


def test_warm_worker_ends_files_that_do_not_end(warm_worker: Worker, tmp_path: Path) -> None:
    assert_survived(
        checked(warm_worker, tmp_path, inside("os._exit(3)").replace("import torch", "import os\nimport torch", 1)),
        "status 3",
    )
    assert_survived(
        checked(warm_worker, tmp_path, inside("torch.ones(1 << 29).mul(2)\n    while True: pass")), "GB of memory"
    )
    assert checked(warm_worker, tmp_path, SOLUTION).verdict.passed


def test_child_that_ended_while_idle_is_replaced(warm_worker: Worker, tmp_path: Path) -> None:
    warm_worker.start()
    before = warm_worker.process_id
    assert before is not None
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 200
    while Path(f"/proc/{before}/stat").exists() and "Z" not in Path(f"/proc/{before}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
    assert checked(warm_worker, tmp_path, SOLUTION).verdict.passed
    assert warm_worker.process_id != before


def test_picture_and_figures_of_a_solved_file(warm_worker: Worker, tmp_path: Path) -> None:
    file, page = tmp_path / "vector_add.py", tmp_path / "picture.html"
    file.write_text(SOLUTION)
    outcome = warm_worker.check(EXERCISE, file, picture=page)
    assert "add_kernel" in page.read_text()
    assert outcome.figures["sector_efficiency"] == 1.0
    assert outcome.figures["loads_per_element"] == 1.0


@pytest.mark.slow
def test_no_file_waits_for_threads_of_an_earlier_judgement() -> None:
    """Without OMP_NUM_THREADS, as users have it: the judge's threads once left OpenMP threads that no fork has."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = [sys.executable, "-m", "tilesmith", "learn", "verify", "flash-attention-backward"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout
    assert "problems: 0" in done.stdout


def test_control_characters_are_removed() -> None:
    assert without_control_characters("a\x1b[31mred\x1b[0m\x07\x08 b\r\n\tc\x9b") == "ared b\n\tc"


def test_output_has_no_passes_of_the_compiler(worker: Worker, tmp_path: Path) -> None:
    source = inside("print('mine')").replace("tl.store(out_ptr + offsets, x + y)", "return x + y")
    found = checked(worker, tmp_path, source)
    assert "A kernel returns nothing" in found.verdict.message
    assert found.printed.strip() == "mine"
