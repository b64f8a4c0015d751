"""benchmarks/hugging_face.py, with small models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilesmith.lab.doc_tables.model_tables import model_tables

pytest.importorskip("transformers", minversion="4.53")
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "hugging_face.py"


@pytest.mark.slow
def test_benchmark_times_each_version_and_keeps_failures(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, PROGRAM, "--toy", "--out", tmp_path, "--seconds", "900", "--each", "0"]
    command += ["--models", "llama-1b", "--versions", "transformers,tilesmith,liger"]
    subprocess.run(command, check=True, timeout=1000)
    (stored,) = tmp_path.glob("llama-1b-*.json")
    result = json.loads(stored.read_text())
    rows: list[dict[str, Any]] = result["rows"] + result["failed"]
    theirs, ours, liger = rows
    assert (theirs["version"], ours["version"]) == ("transformers", "tilesmith")
    assert theirs["losses"] == pytest.approx(ours["losses"], rel=1e-3)
    assert len(ours["losses"]) == 10
    assert ours["patched"]["mlp"] == 2
    table = model_tables("llama-1b", {stored.name: result})
    assert table is not None
    assert "| tilesmith |" in table
    assert "| host |" in table
    assert liger["version"] == "liger"
    assert liger.get("losses") or liger["said"]


def test_benchmark_names_an_unknown_model(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, PROGRAM, "--out", tmp_path, "--models", "llama-1b,gpt7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "gpt7" in done.stderr
    assert "gpt2-medium" in done.stderr
