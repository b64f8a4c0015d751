"""The stages as programs, and the commands that reveal their faults."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tilesmith.lab.inspect import inspect
from tilesmith.training.debugging import case, stage_5, stage_6
from tilesmith.training.debugging.small_model import model, train


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stages in their CPU size on every machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("number", "arguments"),
    [(1, []), *(pytest.param(number, ["--reveal"], marks=pytest.mark.slow) for number in (3, 5))],
)
def test_stage_runs_as_a_program(
    number: int, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = case.stage(number)
    monkeypatch.setattr(sys, "argv", [str(stage.program), *arguments])
    runpy.run_path(str(stage.program), run_name="__main__")
    printed = capsys.readouterr().out
    names = {1: "loss of the first step", 3: "amount of work", 5: "parameters without a gradient"}
    assert names[number] in printed
    assert "(measured)" in printed


def test_every_revealing_command_exists() -> None:
    for number in range(1, case.COUNT + 1):
        stage = case.stage(number)
        assert stage.number == number
        program, *arguments = shlex.split(stage.revealing_command)
        assert program in ("python", "tilesmith")
        if program == "python":
            assert arguments == [str(stage.program), "--reveal"]
        else:
            assert arguments[0] in ("inspect", "compare")


@pytest.mark.usefixtures("forked")
def test_inspect_finds_the_layout_fault_of_stage_2(tmp_path: Path) -> None:
    """Runs the printed command."""
    command = shlex.split(case.stage(2).revealing_command)
    arguments = [sys.executable, "-m", *command, "--target", "cuda:90", "--json", str(tmp_path / "found.json")]
    result = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    (kernel,) = json.loads((tmp_path / "found.json").read_text())["kernels"]
    assert {finding["kind"] for finding in kernel["findings"]} == {"uncoalesced"}


def test_inspect_counts_the_repeated_loads_of_stage_4() -> None:
    found = inspect(case.stage(4).run, targets=("cuda:90",), programs=4)
    loads = max(one.loads_per_element for kernel in found.kernels for one in kernel.arguments if one.name == "x_ptr")
    assert loads >= 32


def test_guard_stops_stage_5_and_passes_the_fixed_model() -> None:
    assert "layers.0.qkv" in stage_5.verdict()
    train(model(), 1, guarded=True)


def test_stage_6_does_not_time_a_wrong_version(monkeypatch: pytest.MonkeyPatch) -> None:
    stage_6.comparison.cache_clear()
    wrong = {"parity": [{"variant": "v4", "passed": False}], "variants": []}
    monkeypatch.setattr(stage_6, "compared", lambda *arguments: wrong)
    with pytest.raises(case.StageError, match="v4 does not compute the same as v1"):
        stage_6.run()
    stage_6.comparison.cache_clear()
