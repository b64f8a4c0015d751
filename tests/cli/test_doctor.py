import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tilesmith.cli.doctor import described, doctor
from tilesmith.toolchain import machine

app = typer.Typer()
app.command()(doctor)
runner = CliRunner()

BARE = machine.Machine(
    python="3.12.1", torch="2.10", triton=None, gpu=None, triton_launches=False, targets=(), profilers=("torch",),
    advice=("Triton [is] not installed.",),
)  # fmt: skip


def test_shows_versions_and_targets_without_control_characters() -> None:
    result = runner.invoke(app)
    assert result.exit_code == 0
    assert "cuda:90" in result.output
    assert "Triton launches here" in result.output
    assert "\x1b" not in result.output
    assert "\r" not in result.output


def test_writes_json_with_the_promised_keys(tmp_path: Path) -> None:
    result = runner.invoke(app, ["--json", str(tmp_path / "doctor.json")])
    assert result.exit_code == 0
    found = json.loads((tmp_path / "doctor.json").read_text())
    assert {"tilesmith", "gpu", "torch", "triton", "python", "targets", "profilers", "advice"} <= set(found)
    assert "hip:gfx942" in found["targets"]
    assert "torch" in found["profilers"]


def test_prints_advice_without_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "examine", lambda: BARE)
    result = runner.invoke(app)
    assert "Triton [is] not installed." in result.output
    assert "Kernels compile for   nothing" in result.output


def test_refuses_a_json_file_that_cannot_be_written(tmp_path: Path) -> None:
    result = runner.invoke(app, ["--json", str(tmp_path)])
    assert result.exit_code == 2
    assert "cannot write" in result.output


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (
            machine.Gpu("NVIDIA H200", "nvidia", "580.1", "9.0", 140 << 30, 8),
            "8 × NVIDIA H200, 140 GiB, compute capability 9.0, driver 580.1",
        ),
        (
            machine.Gpu("AMD Instinct MI300X", "amd", None, "gfx942", 192 << 30, 1),
            "AMD Instinct MI300X, 192 GiB, gfx942",
        ),
    ],
)
def test_describes_a_gpu_in_words(gpu: machine.Gpu, words: str) -> None:
    found = machine.Machine("3.12", "2.10", "3.6", gpu, True, ("cuda:90",), ("torch",), ())
    assert described(found)["GPU"] == words
