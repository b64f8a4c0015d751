"""`tilesmith debug llama`: all stages, one stage, and wrong usage."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from tilesmith.cli.debug import debug
from tilesmith.lab.schemas import schema
from tilesmith.training.debugging import case

KINDS = {"measured", "predicted", "compiled", "counted"}

app = typer.Typer()
app.add_typer(debug)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["debug", "llama", *arguments])


@pytest.fixture(scope="module", autouse=True)
def no_gpu() -> Iterator[None]:
    """Run the stages in their CPU size on every machine."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def all_stages(no_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """Return what a run of all stages prints and writes."""
    path = tmp_path_factory.mktemp("debug") / "case.json"
    result = invoke("--json", str(path))
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    pytest.importorskip("jsonschema").validate(written, schema("debug"))
    assert written["model"] == "llama"
    assert written["tilesmith"]
    return result.output, written["stages"]


def facts(stage: Mapping[str, Any], part: str) -> dict[str, float]:
    return {fact["name"]: fact["value"] for fact in stage[part]["facts"]}


@pytest.mark.slow
def test_all_stages_show_symptom_command_evidence_and_fix(all_stages: Any) -> None:
    output, stages = all_stages
    assert [stage["number"] for stage in stages] == [1, 2, 3, 4, 5, 6]
    assert "\x1b" not in output
    for stage in stages:
        for text in ("title", "symptom", "command", "cause", "fix"):
            assert stage[text]
        assert Path(stage["program"]).is_file()
        assert f"Stage {stage['number']}: {stage['title']}" in output
        for part in ("shown", "evidence"):
            for fact in stage[part]["facts"]:
                assert fact["kind"] in KINDS
                assert math.isfinite(fact["value"])
                assert fact["name"] in output


@pytest.mark.slow
def test_stage_1_starts_above_guessing_and_its_fix_at_guessing(all_stages: Any) -> None:
    stage = all_stages[1][0]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    guessing = shown["loss of guessing, ln(vocabulary)"]
    assert guessing == pytest.approx(math.log(1000))
    assert shown["loss of the first step"] > 3 * guessing
    assert shown["loss of step 20"] > guessing
    assert evidence["loss of the first step, from N(0, 0.02)"] == pytest.approx(guessing, abs=0.2)
    assert evidence["loss of step 20, from N(0, 0.02)"] < guessing - 1
    width = evidence["√hidden, the norm of the rows before the head"]
    assert evidence["standard deviation of the first logits"] == pytest.approx(width, rel=0.2)


@pytest.mark.slow
def test_stage_2_is_right_and_moves_eight_times_the_bytes(all_stages: Any) -> None:
    stage = all_stages[1][1]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    assert shown["loss of step 2"] == pytest.approx(shown["loss of step 2 with PyTorch's norm"], rel=1e-5)
    once = shown["bytes of reading and writing the stream once"]
    assert shown["bytes that the norm moves on cuda:90"] == 8 * once
    assert evidence["sectors per request, features first"] == 32
    assert evidence["sectors per request if packed, features first"] == 4
    assert evidence["used fraction of the moved bytes, positions first"] == 100
    assert evidence["largest error of the strided norm"] < 1e-5


@pytest.mark.slow
def test_stage_3_times_queueing_instead_of_work(all_stages: Any) -> None:
    stage = all_stages[1][2]
    evidence = facts(stage, "evidence")
    assert evidence["forward of 16 sequences, waiting"] > 10 * evidence["forward of 16 sequences, not waiting"]
    assert evidence["16 sequences relative to 4, waiting"] > 1.3
    assert any("a thread stands in" in remark for remark in stage["shown"]["remarks"])


@pytest.mark.slow
def test_stage_4_loads_its_inputs_once_per_element(all_stages: Any) -> None:
    stage = all_stages[1][3]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    assert shown["loss"] == pytest.approx(shown["loss with the BLAS"], rel=1e-5)
    assert shown["bytes that the programs load and store"] > 100 * shown["bytes of x, the weight and the result"]
    assert evidence["loads of each element of x, 32 outputs"] == 32
    assert evidence["loads of each element of the weight, 8 rows"] == 8
    assert evidence["tensor cores used (0 no, 1 yes)"] == 0
    assert evidence["flops per byte that the kernel loads and stores"] < 1
    assert evidence["flops per byte, if each byte moves once"] > 100


@pytest.mark.slow
def test_stage_5_is_fast_learns_less_and_fails_the_guard(all_stages: Any) -> None:
    stage = all_stages[1][4]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    assert shown["backward"] < shown["backward of v1"]
    assert shown["loss of step 40"] > shown["loss of step 40 of v1"] + 0.5
    assert evidence["parameters without a gradient"] == evidence["all parameters"] - 1
    assert any("no gradient reaches norm" in remark for remark in stage["evidence"]["remarks"])


@pytest.mark.slow
def test_stage_6_passes_the_checks_of_all_stages(all_stages: Any) -> None:
    stage = all_stages[1][5]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    # Rounding errors grow with the steps and depend on the CPU; the loss of stage 5 differs by more than a tenth.
    assert shown["loss of step 40"] == pytest.approx(shown["loss of step 40 of v1"], rel=1e-3)
    assert evidence["stage 5: error of the worst gradient"] <= evidence["stage 5: allowed error of the worst gradient"]
    assert evidence["stage 1: loss of the first step"] == pytest.approx(math.log(1000), abs=0.2)
    assert any("its speed is not shown" in remark for remark in stage["shown"]["remarks"])


def test_single_stage_hides_its_cause_until_reveal(tmp_path: Path) -> None:
    hidden = invoke("--stage", "3", "--json", str(tmp_path / "hidden.json"))
    assert hidden.exit_code == 0, hidden.output
    written = json.loads((tmp_path / "hidden.json").read_text())
    pytest.importorskip("jsonschema").validate(written, schema("debug"))
    (stage,) = written["stages"]
    assert [name for name, value in stage.items() if value is None] == ["title", "evidence", "cause", "fix"]
    assert "timing without waiting" not in hidden.output
    assert "synchronize" not in hidden.output
    revealed = invoke("--stage", "3", "--reveal")
    assert "timing without waiting" in revealed.output
    assert "synchronize" in revealed.output


def test_show_prints_the_program() -> None:
    result = invoke("--stage", "4", "--show")
    assert result.exit_code == 0
    compile(result.output, "stage_4.py", "exec")
    assert "def elementwise_swiglu_kernel" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "7"], "--stage"),
        (["--show"], "--stage N"),
        (["--reveal"], "--stage N"),
        (["--stage", "1", "--show", "--reveal"], "nothing else"),
    ],
)
def test_wrong_usage_exits_with_status_2_and_a_reason(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_unwritable_json_file_exits_with_status_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = invoke("--stage", "3", "--json", str(tmp_path / "file" / "case.json"))
    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_copy_writes_programs_into_my_folder_and_keeps_my_changes(tmp_path: Path) -> None:
    result = invoke("--stage", "2", "--copy", str(tmp_path / "mine"))
    assert result.exit_code == 0, result.output
    file = tmp_path / "mine" / "stage_2.py"
    assert file.read_bytes() == case.stage(2).program.read_bytes()
    file.write_text("my changes")
    assert invoke("--copy", str(tmp_path / "mine")).exit_code == 0
    assert file.read_text() == "my changes"
    assert len(list((tmp_path / "mine").iterdir())) == 6
    assert "--copy copies programs" in invoke("--copy", str(tmp_path), "--stage", "1", "--reveal").output
