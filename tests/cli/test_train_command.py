"""`tilesmith train`: its results and files, and one line for every error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from tilesmith.cli import app
from tilesmith.lab.schemas import schema
from tilesmith.models.llama import parts

TINY = ("--hidden-dim", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "8")


TINY_FOLD = (
    "--num-residues", "12", "--num-sequences", "4", "--msa-dim", "16", "--pair-dim", "16", "--num-blocks", "1",
    "--outer-dim", "4",
)  # fmt: skip


def train(*arguments: str | Path, model: str = "llama") -> Result:
    result = CliRunner().invoke(app, ["train", model, *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def test_writes_json_and_html(tmp_path: Path) -> None:
    files = [tmp_path / "run.json", tmp_path / "run.html"]
    result = train(*TINY, "--num-steps", "12", "--variant", "v2", "--json", files[0], "--html", files[1])
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(files[0].read_text())
    pytest.importorskip("jsonschema").validate(content, schema("train"))
    assert {
        "tilesmith", "model", "variant", "config", "losses", "best_loss", "step_ms", "forward_ms", "backward_ms",
        "optimizer_ms", "samples_per_s", "tokens_per_s", "peak_bytes", "parameters", "device", "driver", "torch",
        "triton", "commit", "date",
    } <= content.keys()  # fmt: skip
    assert (content["model"], content["variant"], content["config"]["hidden_dim"]) == ("llama", "v2", 16)
    assert len(content["losses"]) == 12
    assert content["losses"][-1] < content["losses"][0]
    page = files[1].read_text()
    for text in (result.output, page):
        assert "best possible 1.816" in text
        assert "tokens/s" in text
    assert "http" not in page
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", result.output), "piped output has no control characters"


def test_eager_run_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert train(*TINY, "--num-steps", "2", "--variant", "v3", "--eager", "--json", file).exit_code == 0
    content = json.loads(file.read_text())
    assert (content["config"]["eager"], content["captured"]) == (True, "nothing")


def test_resumed_run_has_the_same_losses(tmp_path: Path) -> None:
    saved, json_file = tmp_path / "checkpoint", tmp_path / "run.json"
    assert train(*TINY, "--num-steps", "9", "--json", json_file).exit_code == 0
    whole = json.loads(json_file.read_text())["losses"]
    assert train(*TINY, "--num-steps", "6", "--save", saved, "--save-every", "4").exit_code == 0
    assert train("--resume", saved, "--num-steps", "9", "--json", json_file).exit_code == 0
    assert json.loads(json_file.read_text())["losses"] == pytest.approx(whole, abs=1e-5)


def test_openfold_learns_and_resumes(tmp_path: Path) -> None:
    saved, json_file = tmp_path / "checkpoint", tmp_path / "run.json"
    fast = ("--learning-rate", "0.005", "--variant", "v2")
    result = train(*TINY_FOLD, *fast, "--num-steps", "30", "--save", saved, "--json", json_file, model="openfold")
    assert result.exit_code == 0, result.output
    content = json.loads(json_file.read_text())
    assert (content["model"], content["config"]["batch_size"], content["best_loss"]) == ("openfold", 4, 0.0)
    assert content["losses"][0] == pytest.approx(4.16, abs=0.05), "ln 64: guessing"
    assert sum(content["losses"][-5:]) / 5 < 3.2
    assert "best possible 0.000" in result.output
    again = train("--resume", saved, "--num-steps", "31", "--json", json_file, model="openfold")
    assert again.exit_code == 0, again.output
    went_on = json.loads(json_file.read_text())
    assert (went_on["losses"][:30], len(went_on["losses"])) == (content["losses"], 31)
    assert went_on["losses"][30] < 3.5
    other = train("--resume", saved, "--num-steps", "40")
    assert other.exit_code == 2
    assert "the checkpoint is of openfold, not of llama" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--head-dim", "24"], "--head-dim is 24, which does not divide --msa-dim 64"),
        (["--num-residues", "0"], "--num-residues is 0, but must be at least 1"),
        (["--accumulate", "3"], "--batch-size is 4, but must be divisible by 1 processes times 3"),
    ],
)
def test_wrong_usage_of_openfold_prints_one_line(arguments: list[str], complaint: str) -> None:
    result = train(*arguments, model="openfold")
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_learns_the_bytes_of_a_file(tmp_path: Path) -> None:
    text, json_file = tmp_path / "text", tmp_path / "run.json"
    text.write_text("the cat sat on the mat. " * 40)
    result = train(*TINY, "--data", text, "--num-steps", "40", "--learning-rate", "0.01", "--json", json_file)
    assert result.exit_code == 0
    content = json.loads(json_file.read_text())
    assert content["config"]["vocab_size"] == 256
    assert content["best_loss"] is None
    assert content["losses"][0] == pytest.approx(5.5, abs=0.2)
    assert content["losses"][-1] < 3
    assert "best possible unknown" in result.output


def test_profile_writes_a_trace_and_prints_a_table(tmp_path: Path) -> None:
    result = train(*TINY, "--num-steps", "2", "--profile", tmp_path / "profile")
    assert result.exit_code == 0
    assert (tmp_path / "profile" / "trace.json.gz").stat().st_size > 1000
    assert ("Kernels" if torch.cuda.is_available() else "aten::mm") in result.output
    assert "perfetto" in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--num-heads", "7"], "--hidden-dim is 512, which --num-heads 7 does not divide"),
        (["--num-kv-heads", "3"], "--num-kv-heads is 3, which does not divide --num-heads 8"),
        (["--variant", "v5"], "--variant is 'v5', but must be one of v1, v2, v3, v4"),
        (["--dtype", "int8"], "--dtype is 'int8', but must be one of float32, bfloat16"),
        (["--learning-rate", "0"], "--learning-rate is 0.0, but must be positive"),
        (["--learning-rate", "nan"], "--learning-rate is nan, but must be positive and finite"),
        (["--learning-rate", "inf"], "--learning-rate is inf, but must be positive and finite"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999, but must be between 0 and"),
        (["--hidden-dim", "100000000"], "the sizes are too large: the parameters need 4,4"),
        (["--seq-len", "99999999999999"], "out of memory; try smaller sizes"),
        (["--save-every", "2"], "--save-every needs --save"),
        (["--accumulate", "3"], "--batch-size is 8, but must be divisible by 1 processes times 3"),
        (["--shard"], "--shard needs several processes: start them with torchrun"),
        (["--data", "{tmp}/nowhere"], "--data: cannot read {tmp}/nowhere: No such file or directory"),
        (["--data", "{tmp}/empty"], "--data: {tmp}/empty is empty"),
        (["--data", "{tmp}/short"], "--data: {tmp}/short holds 5 bytes, but a sequence needs 129"),
        (["--resume", "{tmp}/nowhere"], "--resume: {tmp}/nowhere does not exist"),
        (["--resume", "{tmp}/short"], "--resume: {tmp}/short is damaged or not a checkpoint"),
        (["--resume", "{tmp}"], "--resume: {tmp} is a folder, not a checkpoint"),
        (["--save", "/proc/nowhere/checkpoint"], "--save: cannot write /proc/nowhere/checkpoint"),
        ([*TINY, "--num-steps", "2", "--save", "{tmp}/short"], "{tmp}/short: the file exists and is no checkpoint"),
        ([*TINY, "--num-steps", "2", "--profile", "{tmp}/short"], "--profile: {tmp}/short is not a folder"),
    ],
)
def test_wrong_usage_prints_one_line(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_text("hello")
    result = train(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert result.exit_code == 2
    assert complaint.replace("{tmp}", str(tmp_path)) in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_resuming_rejects_other_sizes_and_no_steps_left(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint"
    train(*TINY, "--num-steps", "2", "--save", saved)
    for arguments, complaint in (
        (["--hidden-dim", "32"], "--hidden-dim is 32, but the checkpoint has 16"),
        (["--num-steps", "2"], "--num-steps is 2, but the checkpoint is already at step 2"),
    ):
        result = train("--resume", saved, *arguments)
        assert result.exit_code == 2
        assert complaint in result.stderr


def test_moved_data_of_a_checkpoint_get_a_new_place(tmp_path: Path) -> None:
    saved, text = tmp_path / "checkpoint", tmp_path / "text"
    text.write_text("the cat sat on the mat. " * 4)
    train(*TINY, "--data", text, "--num-steps", "2", "--save", saved)
    moved = text.rename(tmp_path / "moved")
    result = train("--resume", saved, "--num-steps", "3")
    assert result.exit_code == 2
    assert "the checkpoint was trained on this file, so name its new place" in result.stderr
    assert train("--resume", saved, "--num-steps", "3", "--data", moved).exit_code == 0


def test_same_file_to_save_and_resume_starts_the_first_run_and_continues_it(tmp_path: Path) -> None:
    saved, json_file = tmp_path / "checkpoint", tmp_path / "run.json"
    files = ("--save", saved, "--resume", saved, "--json", json_file)
    assert train(*TINY, "--num-steps", "2", *files).exit_code == 0
    first = json.loads(json_file.read_text())["losses"]
    assert train(*TINY, "--num-steps", "4", *files).exit_code == 0
    again = json.loads(json_file.read_text())["losses"]
    assert (again[:2], len(again)) == (first, 4)


def test_full_disk_is_reported_after_the_result(tmp_path: Path) -> None:
    json_file = tmp_path / "run.json"
    result = train(*TINY, "--num-steps", "2", "--save", "/dev/full", "--json", json_file)
    assert result.exit_code == 2
    assert result.stderr == "tilesmith: --save: cannot write /dev/full: No space left on device\n"
    assert len(json.loads(json_file.read_text())["losses"]) == 2
    assert "Training speed" in result.output


def test_missing_gradient_fails_and_names_the_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(x: Tensor, weight: Tensor) -> Tensor:
        return parts.separately_gated(x, weight.detach())

    monkeypatch.setattr("tilesmith.models.llama.V1", _with(parts.V1, gated=cut))
    result = train(*TINY, "--num-steps", "2")
    assert result.exit_code == 1
    assert "no gradient reaches layers.0.gate_up" in result.stderr
    assert "Training speed" not in result.output


def _with(version: Any, **others: Any) -> Any:
    from dataclasses import replace

    return replace(version, parts=replace(version.parts, **others))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc'"),
        ({"WORLD_SIZE": "2"}, "RANK is ''"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_PORT is ''"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "RANK is '2'"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"WORLD_SIZE": "2", "RANK": "-1", "MASTER_ADDR": "", "MASTER_PORT": "1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "1", "RANK": "0", "MASTER_PORT": "1"}, "MASTER_ADDR is ''"),
    ],
)
def test_half_an_environment_of_torchrun_is_refused(
    environment: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = train(*TINY, "--num-steps", "1")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert f"WORLD_SIZE is set in the environment, as torchrun does, but {named}" in result.stderr
