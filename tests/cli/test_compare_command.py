"""`tilesmith compare`: parity, times, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import CliRunner, Result

from tilesmith.cli import app
from tilesmith.lab.schemas import schema
from tilesmith.models.llama import VERSION_NAMES, parts
from tilesmith.models.openfold import versions

TINY = ("--hidden-dim", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "8", "--num-steps", "6")


TINY_FOLD = (
    "--num-residues", "8", "--num-sequences", "4", "--msa-dim", "16", "--pair-dim", "16", "--num-blocks", "1",
    "--outer-dim", "4", "--num-steps", "6", "--learning-rate", "0.01",
)  # fmt: skip


def compare(*arguments: str | Path, model: str = "llama") -> Result:
    result = CliRunner().invoke(app, ["compare", model, *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_all_versions_match_and_have_the_same_losses(tmp_path: Path) -> None:
    files = [tmp_path / "compared.json", tmp_path / "compared.html"]
    result = compare(*TINY, "--json", files[0], "--html", files[1])
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(files[0].read_text())
    pytest.importorskip("jsonschema").validate(content, schema("compare"))
    assert [one["variant"] for one in content["parity"]] == list(VERSION_NAMES)
    assert all(one["passed"] for one in content["parity"])
    assert {"logits_error", "worst_gradient", "worst_gradient_error"} <= content["parity"][0].keys()
    runs = content["variants"]
    assert [run["variant"] for run in runs] == list(VERSION_NAMES)
    for run in runs:
        assert run["losses"] == pytest.approx(runs[0]["losses"], abs=1e-4)
    page = files[1].read_text()
    for text in (result.output, page):
        for word in ("Training speed", "Batch", "Forward", "Backward", "Throughput", "v4 against v1", "best possible"):
            assert word in text
    assert page.count("<polyline") == 1 + len(runs), "a curve for each, and the best possible loss"


@pytest.mark.slow  # fast: the versions in tests/models/test_openfold.py, the command with v1 and v2 below
def test_all_openfold_versions_match_and_have_the_same_losses(tmp_path: Path) -> None:
    json_file, page = tmp_path / "compared.json", tmp_path / "compared.html"
    result = compare(*TINY_FOLD, "--json", json_file, "--html", page, model="openfold")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(json_file.read_text())
    pytest.importorskip("jsonschema").validate(content, schema("compare"))
    assert [one["variant"] for one in content["parity"] if one["passed"]] == list(VERSION_NAMES)
    runs = content["variants"]
    assert [(run["model"], run["config"]["batch_size"]) for run in runs] == [("openfold", 4)] * 4
    for run in runs:
        assert run["losses"] == pytest.approx(runs[0]["losses"], abs=1e-4)
    assert "Tiny OpenFold" in result.output
    assert "Tiny OpenFold" in page.read_text()


def test_openfold_version_that_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_bias(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        return versions.logits_loss(x, weight, 0 * bias, targets)

    wrong = replace(versions.V2, parts=replace(versions.V2.parts, loss=without_bias))
    monkeypatch.setitem(versions.VERSIONS, "v2", wrong)
    result = compare(*TINY_FOLD, "--variants", "v1,v2", model="openfold")
    assert result.exit_code == 1
    assert "v2 was not timed: it does not compute the same as v1." in result.output


def test_version_that_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def swapped(x: Tensor, weight: Tensor) -> Tensor:
        return parts.jointly_gated(x, weight.roll(weight.shape[0] // 2, dims=0))

    monkeypatch.setattr("tilesmith.models.llama.V2", replace(parts.V2, parts=replace(parts.V2.parts, gated=swapped)))
    files = [tmp_path / "compared.json", tmp_path / "compared.html"]
    result = compare(*TINY, "--variants", "v1,v2", "--json", files[0], "--html", files[1])
    assert result.exit_code == 1
    assert "v2 was not timed: it does not compute the same as v1." in result.output
    assert [run["variant"] for run in json.loads(files[0].read_text())["variants"]] == ["v1"]
    assert "differs" in files[1].read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--variants", "v1,v7"], "--variants 'v7' is not one of v1, v2, v3, v4"),
        (["--variants", ","], "--variants ',' names nothing"),
        (["--num-heads", "7"], "which --num-heads 7 does not divide"),
        (["--data", "nowhere"], "--data: cannot read nowhere"),
    ],
)
def test_wrong_usage_prints_one_line(arguments: list[str], complaint: str) -> None:
    result = compare(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
