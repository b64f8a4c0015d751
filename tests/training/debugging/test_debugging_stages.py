"""The stages as programs of their own, and the commands that are said to reveal their faults."""

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
from tilesmith.training.debugging.small import model, train


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of the size that they have without one, wherever the tests run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(("number", "arguments"), [(1, []), (3, ["--look"]), (5, ["--look"])])
def test_a_stage_runs_by_itself(
    number: int, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = case.stage(number)
    monkeypatch.setattr(sys, "argv", [str(stage.program), *arguments])
    runpy.run_path(str(stage.program), run_name="__main__")
    printed = capsys.readouterr().out
    names = {1: "loss of the first step", 3: "work that there is", 5: "parameters without a gradient"}
    assert names[number] in printed
    assert "(measured)" in printed


def test_every_revealing_command_is_one_that_exists() -> None:
    for number in range(1, case.COUNT + 1):
        stage = case.stage(number)
        assert stage.number == number
        program, *arguments = shlex.split(stage.revealing_command)
        assert program in ("python", "tilesmith")
        if program == "python":
            assert arguments == [str(stage.program), "--look"]
        else:
            assert arguments[0] in ("inspect", "compare")


@pytest.mark.usefixtures("forked")
def test_inspect_finds_the_layout_fault_of_stage_2(tmp_path: Path) -> None:
    """The command as it is printed."""
    command = shlex.split(case.stage(2).revealing_command)
    arguments = [sys.executable, "-m", *command, "--target", "cuda:90", "--json", str(tmp_path / "found.json")]
    result = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    (kernel,) = json.loads((tmp_path / "found.json").read_text())["kernels"]
    assert {finding["kind"] for finding in kernel["findings"]} == {"uncoalesced"}


def test_inspect_sees_how_often_stage_4_loads_everything() -> None:
    found = inspect(case.stage(4).run, targets=("cuda:90",), programs=4)
    loads = max(one.loads_per_element for kernel in found.kernels for one in kernel.arguments if one.name == "x_ptr")
    assert loads >= 32


def test_the_guard_stops_stage_5_and_lets_the_mended_model_train() -> None:
    assert "layers.0.qkv" in stage_5.verdict()
    train(model(), 1, guarded=True)


def test_stage_6_refuses_to_time_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    stage_6.comparison.cache_clear()
    wrong = {"parity": [{"variant": "v4", "passed": False}], "variants": []}
    monkeypatch.setattr(stage_6, "compared", lambda *arguments: wrong)
    with pytest.raises(case.StageError, match="v4 does not compute what v1 computes"):
        stage_6.run()
    stage_6.comparison.cache_clear()
