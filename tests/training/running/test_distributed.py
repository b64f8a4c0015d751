"""Two processes train like one: each with a copy of the model, or with a shard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forked import forking
from tilesmith.cli import app

COMMANDS = Path(__file__).with_name("several_commands.py")
SIZES = (
    "--hidden-dim", "16", "--num-layers", "2", "--num-heads", "2", "--seq-len", "4", "--batch-size", "4",
    "--learning-rate", "0.01",
)  # fmt: skip
RUNS = {
    "one": (*SIZES, "--num-steps", "6"),
    "copies": (*SIZES, "--num-steps", "6", "--accumulate", "2"),
    "shards": (*SIZES, "--num-steps", "4", "--shard", "--accumulate", "2", "--variant", "v3"),
    "kernels": (*SIZES, "--num-steps", "1", "--shard", "--variant", "v3"),
}


def command(name: str, folder: Path, *more: str) -> list[str]:
    return ["train", "llama", *RUNS[name], "--json", str(folder / f"{name}.json"), *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("distributed")
    saved = str(folder / "checkpoint")
    resumed = ["train", "llama", "--resume", saved, "--num-steps", "6", "--json", str(folder / "resumed.json")]
    return results_of(
        folder,
        ("auto", command("copies", folder)), ("auto", command("shards", folder, "--save", saved)), ("auto", resumed),
    )  # fmt: skip


def results_of(folder: Path, *commands: tuple[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Return the results of commands in two processes, and those of one process, by name."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # Two processes, but perhaps one GPU: run on the CPU.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # What one process imports, its forks have.
    assert CliRunner().invoke(app, command("one", folder)).exit_code == 0
    import_module("tilesmith.training.running.distributed")
    with forking():
        done = subprocess.run(
            [*torchrun, str(COMMANDS), json.dumps(commands)],
            capture_output=True, text=True, env=environment, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Training speed") == len(commands), "only the first process prints"
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize("name", ["copies", "shards", "resumed"])
def test_two_processes_have_the_losses_of_one(trained: dict[str, dict[str, Any]], name: str) -> None:
    assert_same_losses(trained[name], trained["one"])


@pytest.mark.slow
def test_two_processes_with_kernels_have_the_losses_of_one(tmp_path: Path) -> None:
    results = results_of(tmp_path, ("interpret", command("kernels", tmp_path)))
    assert_same_losses(results["kernels"], results["one"])


def assert_same_losses(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["config"]["processes"] == 2
    assert found["losses"] == pytest.approx(expected["losses"][: len(found["losses"])], abs=1e-4)
    assert found["parameters"] == expected["parameters"]


def test_sharded_checkpoint_can_be_resumed(trained: dict[str, dict[str, Any]]) -> None:
    assert len(trained["shards"]["losses"]) == 4
    assert len(trained["resumed"]["losses"]) == 6
    assert trained["resumed"]["losses"][:4] == trained["shards"]["losses"]
