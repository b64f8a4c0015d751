import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tilesmith
from tilesmith.cli import app

# The commands run in folders of their own, where a relative path to the package would lead nowhere.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(tilesmith.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
}
PROGRAM = "from tilesmith.cli import main; main()"
WORK = """
import sys
import torch

matrix = torch.randn(64, 64)
for _ in range(int(sys.argv[1])):
    matrix = torch.softmax(matrix @ matrix, -1)
print("worked as", __name__, sys.argv[1:])
"""
ENDLESS = """
import time
import torch

print("started", flush=True)
while True:
    torch.ones(8).tanh()
    time.sleep(0.01)
"""
KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def double_kernel(x_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(x_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=mask), mask=mask)

x = torch.ones(1 << 20, device="cuda")
for _ in range(10):
    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), BLOCK=1024)
torch.cuda.synchronize()
"""


def profile(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, "profile", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=180)


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, "profile", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


@pytest.mark.usefixtures("forked")
def test_profiles_a_script_without_a_gpu(folder: Path) -> None:
    done = profile(folder, "--tool", "torch", "--json", "s.json", "--html", "s.html", "--", "work.py", "3")
    assert done.returncode == 0, done.stderr
    assert "worked as __main__ ['3']" in done.stdout
    assert "tilesmith-profile/torch-1/trace.json.gz" in done.stdout
    assert "ui.perfetto.dev" in done.stdout
    assert "\x1b" not in done.stdout
    assert not done.stderr
    found: dict[str, Any] = json.loads((folder / "s.json").read_text())
    assert (found["tool"], found["command"], found["status"]) == ("torch", ["work.py", "3"], 0)
    calls = {entry["name"]: entry["calls"] for entry in found["entries"]}
    assert found["what"] == "kernels" or calls["aten::mm"] == calls["aten::_softmax"] == 3
    assert "Profile of work.py 3" in (folder / "s.html").read_text()


@pytest.mark.usefixtures("forked")
def test_profiles_a_module(folder: Path) -> None:
    done = profile(folder, "--out", "here", "--", sys.executable, "-u", "-m", "work", "2")
    assert done.returncode == 0, done.stderr
    assert "worked as __main__ ['2']" in done.stdout
    assert (folder / "here/torch-1/trace.json.gz").exists()


@pytest.mark.usefixtures("forked")
def test_failing_command_shows_its_output_and_exits_with_one(folder: Path) -> None:
    (folder / "broken.py").write_text("import torch\ntorch.ones(2) + 1\nraise RuntimeError('my own words')\n")
    done = profile(folder, "--", "broken.py")
    assert done.returncode == 1
    assert "my own words" in done.stderr
    assert "the command failed with status 1" in done.stdout
    assert "aten::add" in done.stdout  # what it did until then


@pytest.mark.usefixtures("forked")
def test_ctrl_c_keeps_the_recording(folder: Path) -> None:
    (folder / "endless.py").write_text(ENDLESS)
    process = start(folder, "--", "endless.py")
    assert process.stdout is not None
    while (line := process.stdout.readline()) and "started" not in line:
        pass
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in output
    assert "trace.json.gz" in output
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--", "missing.py"], "missing.py: no such file"),
        (["--", sys.executable, "missing.py"], "missing.py: no such file"),
        (["--", sys.executable], f"{sys.executable} names no program to run"),
        (["--", "no-such-program"], "no-such-program: no such command"),
        (["--tool", "perf", "--", "work.py"], "--tool is 'perf', but must be one of auto, torch"),
        (["--out", "work.py", "--", "work.py"], "cannot write to work.py"),
    ],
)
def test_wrong_usage_prints_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        app(["profile", *arguments])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tilesmith: {complaint}")
    assert len(said.splitlines()) == 1
    assert not (folder / "tilesmith-profile").exists()


@pytest.mark.slow
def test_python_without_pytorch_is_reported(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
    done = profile(folder, "--", "bare/bin/python", "work.py", "1")
    assert done.returncode == 1
    assert "cannot be profiled: No module named 'torch'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("tilesmith-profile/*"))


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["torch", "proton"])
def test_finds_a_triton_kernel_on_a_gpu(folder: Path, tool: str) -> None:
    (folder / "kernel.py").write_text(KERNEL)
    done = profile(folder, "--tool", tool, "--json", "s.json", "--", "kernel.py")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "s.json").read_text())
    calls = {entry["name"]: entry["calls"] for entry in found["entries"]}
    assert calls["double_kernel"] == 10
    assert found["launches"] >= 10
