"""The table of an exercise, filled in from traces of the learner's own kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilesmith.workshop.checking import gpu_timing
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import BUILT_IN, Catalogue
from tilesmith.workshop.course.exercise import Size
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.learner.workshop_folder import Workshop

EXERCISE = load_exercise(BUILT_IN / "block-size")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    workshop = Workshop(tmp_path, Catalogue())
    workshop.start(EXERCISE)
    return workshop.file_of(EXERCISE)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.workshop.checking.constant_sweep.torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_sweep_tries_every_value_and_restores_the_constant(file: Path) -> None:
    check = TritonCheck(EXERCISE, file)
    verdict = check.verdict()
    assert (verdict.stage, verdict.passed) == ("goals", False)
    heads, *rows = verdict.table
    assert heads == ["BLOCK_SIZE", "programs", "requests", "vector_bytes", "masked_fraction", "registers"]
    found = {row[0]: dict(zip(heads, row, strict=True)) for row in rows}
    assert [found[size]["programs"] for size in ("64", "512", "4096")] == ["79", "10", "2"]
    assert [found[size]["vector_bytes"] for size in ("64", "256", "512")] == ["4", "8", "16"]
    assert float(found["4096"]["masked_fraction"]) == pytest.approx(1 - 5008 / 8192, abs=1e-3)
    assert all(int(one["registers"]) > 0 for one in found.values())
    assert check.spec.op.__globals__["BLOCK_SIZE"] == 64


def test_file_without_the_constant_gets_no_table(file: Path) -> None:
    file.write_text(
        EXERCISE.solution.read_text().replace("BLOCK_SIZE = 512", "SIZE = 512").replace("=BLOCK_SIZE", "=SIZE")
    )
    file.write_text(file.read_text().replace("x.numel(), BLOCK_SIZE)", "x.numel(), SIZE)"))
    verdict = TritonCheck(EXERCISE, file).verdict()
    assert verdict.passed, verdict.message
    assert verdict.table == []


def test_table_is_written_into_the_learners_page(file: Path, tmp_path: Path) -> None:
    table = [["BLOCK_SIZE", "programs"], ["64", "79"], ["512", "10"]]
    page = file.with_name("page.md")
    before = page.read_text()
    workshop = Workshop(tmp_path, Catalogue())
    workshop.note_check(EXERCISE, Verdict("block-size", False, "goals", "", table=table), b"")
    assert "| BLOCK_SIZE | programs |\n|---|---|\n| 64 | 79 |\n| 512 | 10 |\n\n```" in page.read_text()
    assert page.read_text().partition("| BLOCK_SIZE")[0] == before.partition("| BLOCK_SIZE")[0]
    page.write_text("no table any more\n")
    workshop.note_check(EXERCISE, Verdict("block-size", False, "goals", "", table=table), b"")
    assert page.read_text() == "no table any more\n"


def test_with_a_gpu_the_table_has_a_column_of_times(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes_timed: list[int] = []

    def device_microseconds(spec: Any, size: Size) -> float:
        sizes_timed.append(spec.op.__globals__["BLOCK_SIZE"])
        return 12.34

    monkeypatch.setattr("tilesmith.workshop.checking.constant_sweep.torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("tilesmith.workshop.checking.triton_check.TritonCheck._measure_speed", lambda self: [])
    monkeypatch.setattr(gpu_timing, "device_microseconds", device_microseconds)
    heads, *rows = TritonCheck(EXERCISE, file).verdict().table
    assert heads[-1] == "µs, measured on 16,777,216 elements"
    assert [row[-1] for row in rows] == ["12.3"] * 6
    assert sizes_timed == [64, 128, 256, 512, 1024, 4096]
