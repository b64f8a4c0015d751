"""Runs that are interrupted, killed and resumed, on one process and under torchrun."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tilesmith.training.results.report
import tilesmith.training.running.options  # noqa: F401  # as above
from forked import forking
from rendezvous import rendezvous

SIZES = (
    "--hidden-dim", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "4", "--batch-size", "4",
    "--learning-rate", "0.01",
)  # fmt: skip
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
FOREVER = ("--num-steps", "1000000")
SECONDS = 300
"""The longest time that a test waits; much longer than a busy machine needs."""

Processes = list[subprocess.Popen[str]]


@contextmanager
def training(*words: str | Path, processes: int = 1) -> Iterator[Processes]:
    """Start `tilesmith train llama` in one process, or in several as torchrun does; end them after the block."""
    with rendezvous(processes) as environments:
        with forking():
            started = [_started((), words, more if processes > 1 else {}) for more in environments]
        try:
            yield started
        finally:
            for process in started:
                process.kill()
                process.wait()


@contextmanager
def torchrun(*words: str | Path, options: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Start two processes by torchrun; end all of them after the block."""
    process = _started((*TORCHRUN, *options), words, {})
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(launcher: tuple[str, ...], words: tuple[str | Path, ...], more: dict[str, str]) -> subprocess.Popen[str]:
    # Two processes, but perhaps one GPU: run on the CPU.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "tilesmith", "train", "llama", *SIZES, *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
    )  # fmt: skip


def ended(started: Processes) -> tuple[list[int], list[str]]:
    """Return the exit statuses and outputs of processes that end by themselves."""
    outputs = [process.communicate(timeout=SECONDS)[0] for process in started]
    return [process.returncode for process in started], outputs


def wait_for(path: Path, *, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)


def steps_in(saved: Path) -> int:
    from tilesmith.training.running import checkpoint

    return len(checkpoint.read(saved).facts["losses"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of 40 steps of one process."""
    file = tmp_path_factory.mktemp("whole") / "run.json"
    with training("--num-steps", "40", "--json", file) as started:
        statuses, outputs = ended(started)
    assert statuses == [0], outputs
    found: dict[str, Any] = json.loads(file.read_text())
    return list(found["losses"])


@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_run_killed_at_random_moments_has_the_same_losses(
    tmp_path: Path, uninterrupted: list[float], kills: int
) -> None:
    """A kill can come during a step, while a checkpoint is written, and between the two."""
    saved, file, killed = tmp_path / "checkpoint", tmp_path / "run.json", 0
    words = ("--num-steps", "40", "--save", saved, "--save-every", "1", "--resume", saved, "--json", file)
    moments = random.Random(0)
    while killed < kills:
        with training(*words) as (process,):
            wait_for(saved)
            time.sleep(moments.uniform(0, 1.5))
            killed += process.poll() is None
        if file.exists():  # the run had ended before it was killed
            assert json.loads(file.read_text())["losses"] == uninterrupted
            file.unlink()
        if steps_in(saved) == 40:  # nothing is left to resume: start again
            saved.unlink()
    with training(*words) as started:
        statuses, outputs = ended(started)
    assert statuses == [0], outputs
    assert json.loads(file.read_text())["losses"] == uninterrupted
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint", "run.json"], "no partial files are left"


@pytest.mark.parametrize(("number", "receiver"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_signal_to_one_process_saves_a_checkpoint_and_ends_all(
    tmp_path: Path, number: signal.Signals, receiver: int
) -> None:
    saved = tmp_path / "checkpoint"
    with training(*FOREVER, "--save", saved, "--save-every", "50", processes=2) as started:
        wait_for(saved)
        started[receiver].send_signal(number)
        statuses, outputs = ended(started)
    assert statuses == [1, 1]
    assert outputs[0].count("Training speed") == 1
    assert outputs[1] == "", "only the first process prints"
    assert steps_in(saved) == int(outputs[0].split("interrupted after ")[1].split()[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_torchrun_saves_a_checkpoint_and_ends(tmp_path: Path, number: signal.Signals) -> None:
    saved = tmp_path / "checkpoint"
    with torchrun(*FOREVER, "--save", saved, "--save-every", "50") as process:
        wait_for(saved)
        process.send_signal(number)
        output, _ = process.communicate(timeout=SECONDS)
    assert steps_in(saved) == int(output.split("interrupted after ")[1].split()[0])


@pytest.mark.parametrize("killed", [0, 1])
def test_killed_process_ends_the_other_with_one_line(tmp_path: Path, killed: int) -> None:
    saved = tmp_path / "checkpoint"
    with training(*FOREVER, "--save", saved, "--save-every", "5", processes=2) as started:
        wait_for(saved)
        started[killed].kill()
        statuses, outputs = ended(started)
    assert statuses[1 - killed] == 1
    # PyTorch may warn of the lost connection in lines of its own.
    lines = [line for line in outputs[1 - killed].splitlines() if line.startswith("tilesmith")]
    assert len(lines) == 1, outputs
    assert f"tilesmith: process {1 - killed}: another process ended, and its message says why" in lines[0]
    assert steps_in(saved) % 5 == 0


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_process_was_killed(tmp_path: Path) -> None:
    saved, file = tmp_path / "checkpoint", tmp_path / "run.json"
    words = ("--num-steps", "400", "--save", saved, "--save-every", "20", "--resume", saved, "--json", file)
    with torchrun(*words, options=("--max-restarts", "2")) as process:
        wait_for(saved)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert len(json.loads(file.read_text())["losses"]) == 400


def test_number_of_processes_may_change_at_resume(tmp_path: Path, uninterrupted: list[float]) -> None:
    saved, file = tmp_path / "checkpoint", tmp_path / "run.json"
    for last, processes, more in ((6, 2, ["--shard"]), (12, 1, [])):
        words: list[str | Path] = ["--num-steps", str(last), "--save", saved, "--resume", saved, "--json", file]
        words += more
        with training(*words, processes=processes) as started:
            statuses, outputs = ended(started)
        assert statuses == [0] * processes, outputs
        assert json.loads(file.read_text())["losses"] == pytest.approx(uninterrupted[:last], abs=1e-4)


def test_failed_checkpoint_ends_all_processes_alike() -> None:
    with training("--num-steps", "6", "--save", "/dev/full", "--save-every", "2", processes=2) as started:
        statuses, outputs = ended(started)
    assert statuses == [2, 2], outputs
    assert outputs[0].endswith("tilesmith: --save: cannot write /dev/full: No space left on device\n")
    assert outputs[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["v1", "v4"])
def test_hundred_runs_of_two_processes_end(variant: str) -> None:
    for _ in range(100):
        with training("--num-steps", "3", "--variant", variant, processes=2) as started:
            statuses, outputs = ended(started)
        assert statuses == [0, 0], outputs
