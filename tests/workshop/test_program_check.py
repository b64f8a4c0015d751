"""Checks of Python programs around kernels, and the GPU whose clock they measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tilesmith.workshop.checking.pretended_gpu import LAUNCH_MS, PretendedGpu
from tilesmith.workshop.checking.program_check import ProgramCheck
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise import ExerciseError
from tilesmith.workshop.course.exercise_file import load_exercise

EXERCISE = load_exercise(BUILT_IN / "cuda-events")
SOLUTION = EXERCISE.solution.read_text()


def verdict_on(source: str, folder: Path) -> Verdict:
    file = folder / EXERCISE.file_name
    file.write_text(source)
    return ProgramCheck(EXERCISE, file).verdict()


def test_solution_reaches_the_last_stage_and_shows_its_goal(tmp_path: Path) -> None:
    verdict = verdict_on(SOLUTION, tmp_path)
    assert verdict.passed
    assert verdict.stage == "goals"
    assert [(one.name, one.value, one.met) for one in verdict.goals] == [("waits", 1, True)]


def test_exception_of_the_file_fails_at_runs_and_names_its_line(tmp_path: Path) -> None:
    verdict = verdict_on(SOLUTION.replace("torch.cuda.synchronize()", "torch.cuda.synchronise()"), tmp_path)
    assert verdict.stage == "runs"
    assert "cuda_events.py:18" in verdict.message
    assert "synchronise" in verdict.message


def test_exception_while_importing_fails_at_runs(tmp_path: Path) -> None:
    verdict = verdict_on(SOLUTION + "\nundefined_name\n", tmp_path)
    assert verdict.stage == "runs"
    assert "while Python imports the file" in verdict.message


def test_wrong_result_fails_at_right_with_a_lesson(tmp_path: Path) -> None:
    verdict = verdict_on(SOLUTION.replace("return median(", "return 2 * median("), tmp_path)
    assert verdict.stage == "right"
    assert "time_ms(work, runs=5) returns 4 ms" in verdict.message


def test_result_of_another_type_fails_with_a_sentence(tmp_path: Path) -> None:
    verdict = verdict_on(SOLUTION.replace("return median(", "return print("), tmp_path)
    assert verdict.stage == "right"
    assert "returns None, but a number of milliseconds is wanted" in verdict.message


def test_missed_goal_fails_at_goals(tmp_path: Path) -> None:
    wait = "    torch.cuda.synchronize()\n"
    verdict = verdict_on(SOLUTION.replace(wait, 2 * wait), tmp_path)
    assert verdict.stage == "goals"
    assert "then wait once" in verdict.message


def test_gap_fails_at_parses(tmp_path: Path) -> None:
    assert verdict_on(EXERCISE.starter.read_text(), tmp_path).stage == "parses"


def test_program_has_no_stage_compiles() -> None:
    assert EXERCISE.stages_until("goals") == ["parses", "runs", "right", "goals"]
    assert not EXERCISE.has_kernels


def test_two_kinds_in_one_exercise_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "exercise.toml").write_text('id = "both"\ntitle = "t"\ntrack = "x"\n[cuda]\n[program]\nfunction = "f"\n')
    with pytest.raises(ExerciseError, match="more than one of spec, cuda and program"):
        load_exercise(folder)


@pytest.mark.parametrize("name", [one.id for one in Catalogue().values() if one.is_program])
def test_every_program_solution_passes(name: str, tmp_path: Path) -> None:
    exercise = Catalogue()[name]
    file = tmp_path / exercise.file_name
    file.write_text(exercise.solution.read_text())
    verdict = ProgramCheck(exercise, file).verdict()
    assert verdict.passed, verdict.message


def event(**options: bool) -> Any:
    """Return an event of the GPU that PyTorch has at this moment."""
    return torch.cuda.Event(**options)  # type: ignore[no-untyped-call]


class TestPretendedGpu:
    def test_launch_returns_before_the_work_is_done(self) -> None:
        gpu = PretendedGpu()
        gpu.launch(2.0)
        assert gpu.host == LAUNCH_MS
        gpu.synchronize()
        assert gpu.host == LAUNCH_MS + 2.0

    def test_events_carry_the_time_of_the_gpu(self) -> None:
        gpu = PretendedGpu()
        with gpu.in_torch():
            start, end = event(enable_timing=True), event(enable_timing=True)
            gpu.launch(1.0)
            start.record()
            gpu.launch(2.0)
            end.record()
            with pytest.raises(RuntimeError, match="completed"):
                start.elapsed_time(end)
            end.synchronize()
            assert start.elapsed_time(end) == pytest.approx(2.0)

    def test_event_without_timing_or_record_raises(self) -> None:
        gpu = PretendedGpu()
        with gpu.in_torch():
            timed, untimed = event(enable_timing=True), event()
            with pytest.raises(RuntimeError, match="enable_timing"):
                timed.elapsed_time(untimed)
            with pytest.raises(RuntimeError, match="recorded"):
                timed.elapsed_time(event(enable_timing=True))
