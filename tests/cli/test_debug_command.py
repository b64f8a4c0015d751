"""`tilesmith debug llama` as its users meet it: all stages, one stage, and wrong usage."""

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

KINDS = {"measured", "predicted", "compiled", "counted"}

app = typer.Typer()
app.add_typer(debug)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["debug", "llama", *arguments])


@pytest.fixture(scope="module", autouse=True)
def no_gpu() -> Iterator[None]:
    """Stages at the size and with the facts that they have without one, wherever the tests run."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def whole(no_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """What a run through all stages prints and writes."""
    path = tmp_path_factory.mktemp("debug") / "case.json"
    result = invoke("--json", str(path))
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["model"] == "llama"
    assert written["tilesmith"]
    return result.output, written["stages"]


def facts(stage: Mapping[str, Any], part: str) -> dict[str, float]:
    return {fact["name"]: fact["value"] for fact in stage[part]["facts"]}


def test_all_six_stages_are_told_with_symptom_command_evidence_and_fix(whole: Any) -> None:
    output, stages = whole
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


def test_stage_1_starts_far_above_guessing_and_the_fix_at_it(whole: Any) -> None:
    stage = whole[1][0]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    guessing = shown["loss of guessing, ln(vocabulary)"]
    assert guessing == pytest.approx(math.log(1000))
    assert shown["loss of the first step"] > 3 * guessing
    assert shown["loss of step 20"] > guessing
    assert evidence["loss of the first step, from N(0, 0.02)"] == pytest.approx(guessing, abs=0.2)
    assert evidence["loss of step 20, from N(0, 0.02)"] < guessing - 1
    width = evidence["√hidden, what the norm before the head makes of N(0, 1)"]
    assert evidence["standard deviation of the first logits"] == pytest.approx(width, rel=0.2)


def test_stage_2_is_right_and_moves_eight_times_what_it_must(whole: Any) -> None:
    stage = whole[1][1]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    assert shown["loss of step 2"] == pytest.approx(shown["loss of step 2 with PyTorch's norm"], rel=1e-5)
    once = shown["bytes of reading and writing the stream once"]
    assert shown["bytes that the norm moves on cuda:90"] == 8 * once
    assert evidence["sectors per request, features first"] == 32
    assert evidence["sectors per request if packed, features first"] == 4
    assert evidence["share of the moved bytes that is used, positions first"] == 100
    assert evidence["largest error of the strided norm"] < 1e-5


def test_stage_3_times_the_handing_over_and_not_the_work(whole: Any) -> None:
    stage = whole[1][2]
    evidence = facts(stage, "evidence")
    assert evidence["forward of 16 sequences, waiting"] > 10 * evidence["forward of 16 sequences, not waiting"]
    assert evidence["16 sequences to 4, waiting"] > 1.3
    assert any("a thread takes the place" in remark for remark in stage["shown"]["remarks"])


def test_stage_4_loads_everything_again_for_each_element(whole: Any) -> None:
    stage = whole[1][3]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    assert shown["loss"] == pytest.approx(shown["loss with the BLAS"], rel=1e-5)
    assert shown["bytes that they ask for"] > 100 * shown["bytes of x, the weight and the result"]
    assert evidence["loads of each element of x, 32 outputs"] == 32
    assert evidence["loads of each element of the weight, 8 rows"] == 8
    assert evidence["tensor cores used (0 no, 1 yes)"] == 0
    assert evidence["flops for each byte that the kernel asks for"] < 1
    assert evidence["flops for each byte, if each is moved once"] > 100


def test_stage_5_is_fast_learns_less_and_is_found_by_the_guard(whole: Any) -> None:
    stage = whole[1][4]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    assert shown["backward"] < shown["backward of v1"]
    assert shown["loss of step 40"] > shown["loss of step 40 of v1"] + 0.5
    assert evidence["parameters without a gradient"] == evidence["parameters in all"] - 1
    assert any("no gradient reaches norm" in remark for remark in stage["evidence"]["remarks"])


def test_stage_6_passes_what_the_others_fail(whole: Any) -> None:
    stage = whole[1][5]
    shown, evidence = facts(stage, "shown"), facts(stage, "evidence")
    # Rounding grows from step to step, by how much depends on the CPU; stage 5 is off by more than a tenth.
    assert shown["loss of step 40"] == pytest.approx(shown["loss of step 40 of v1"], rel=1e-3)
    assert evidence["stage 5: error of the worst gradient"] <= evidence["stage 5: error that rounding allows it"]
    assert evidence["stage 1: loss of the first step"] == pytest.approx(math.log(1000), abs=0.2)
    assert any("nothing is claimed about its speed" in remark for remark in stage["shown"]["remarks"])


def test_a_single_stage_keeps_its_secret_until_asked(tmp_path: Path) -> None:
    hidden = invoke("--stage", "3", "--json", str(tmp_path / "hidden.json"))
    assert hidden.exit_code == 0, hidden.output
    (stage,) = json.loads((tmp_path / "hidden.json").read_text())["stages"]
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
def test_wrong_usage_ends_with_status_2_and_says_why(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = invoke("--stage", "3", "--json", str(tmp_path / "file" / "case.json"))
    assert result.exit_code == 2
    assert "cannot write" in result.output
