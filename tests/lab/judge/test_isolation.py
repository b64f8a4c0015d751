"""A confined child cannot reach files, network, programs or other processes; its end has a reason."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tilesmith import messages, nursery_process
from tilesmith.lab.comparison import compare
from tilesmith.lab.judge import Candidate, Judge, Options, Task
from tilesmith.lab.judge.isolation import sandbox, seccomp
from tilesmith.lab.judge.isolation.arena import Arena
from tilesmith.lab.rounding_model import rounded

PROBE = """
import json, os, resource, signal, socket, subprocess

def tried(action):
    try:
        action()
    except (OSError, ValueError) as error:
        return type(error).__name__
    return "done"

found = {{
    "read": tried(lambda: open("{secret}").read()),
    "write": tried(lambda: open("{folder}/written", "w")),
    "own": tried(lambda: open("mine.txt", "w").close()),
    "socket": tried(lambda: socket.socket()),
    "program": tried(lambda: subprocess.run(["true"])),
    "fork": tried(os.fork),
    "kill": tried(lambda: os.kill(1, signal.SIGTERM)),
    "python": tried(lambda: __import__("colorsys")),
    "limits": tried(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)),
    "own limits": tried(lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))),
}}
print(json.dumps(found))

def softmax(x):
    return None
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has Landlock and seccomp")
def test_confined_process_reaches_its_own_folder_only(tmp_path: Path, warm_judge: Judge, softmax: Task) -> None:
    secret = tmp_path / "task.py"
    secret.write_text("the task")
    candidate = Candidate.of_text(PROBE.format(secret=secret, folder=tmp_path))
    verdict = warm_judge.judge(softmax, candidate, Options(seed=1, facts=False))
    found = json.loads(verdict.printed.splitlines()[0])
    if sandbox.LANDLOCK in verdict.protections:
        assert (found["read"], found["write"]) == ("PermissionError", "PermissionError")
    if sandbox.SECCOMP in verdict.protections:
        assert {found[name] for name in ("socket", "program", "fork", "kill")} == {"PermissionError"}
        assert found["own limits"] == "ValueError"  # Python's word for EPERM here
    assert (found["own"], found["python"], found["limits"]) == ("done", "done", "done")
    assert not (tmp_path / "written").exists()


def test_filter_denies_what_its_name_says() -> None:
    assert {"execve", "socket", "ptrace", "kill"} <= set(seccomp.denied_calls())


SOCKETS = """
import socket
from tilesmith.lab.judge.isolation import seccomp

held = seccomp.install(unix_sockets=True)
socket.socket(socket.AF_UNIX).bind("\\0tilesmith-test")
try:
    socket.socket(socket.AF_INET)
    print("network" if held else "no filter")
except PermissionError:
    print("refused")
"""


@pytest.mark.usefixtures("forked")
def test_process_on_a_gpu_has_sockets_inside_of_the_machine_only() -> None:
    done = subprocess.run([sys.executable, "-c", SOCKETS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("refused", "no filter")


def test_timeout_ends_the_child_in_time(warm_judge: Judge, softmax: Task) -> None:
    from dataclasses import replace

    task = replace(softmax, rules=replace(softmax.rules, seconds=1.0))
    started = time.monotonic()
    verdict = warm_judge.judge(task, Candidate.of_text("def softmax(x):\n    while True: pass"), Options(facts=False))
    assert time.monotonic() - started < 300
    assert verdict.reason is not None
    assert verdict.reason.kind == "timeout"


def test_nursery_survives_a_candidate_that_crashes(warm_judge: Judge, softmax: Task) -> None:
    crash = Candidate.of_text("import ctypes\n\n\ndef softmax(x):\n    ctypes.string_at(0)")
    for _ in range(2):
        reason = warm_judge.judge(softmax, crash, Options(facts=False)).reason
        assert reason is not None
        assert reason.kind == "ended"
        assert "SIGSEGV" in reason.message


def test_arena_gives_no_bytes_outside_of_it() -> None:
    arena = Arena.new(4096)
    assert arena.bytes_at(0, 4096).size == 4096
    with pytest.raises(ValueError, match="of an arena"):
        arena.bytes_at(4000, 200)
    with pytest.raises(ValueError, match="of an arena"):
        arena.storage_at(-1, 2)
    arena.close()


@pytest.mark.parametrize("sent", [b"\xff" * 8, (5).to_bytes(8, "big") + b"abcde", (2).to_bytes(8, "big") + b"[]"])
def test_what_is_no_message_is_garbage(sent: bytes) -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        with pytest.raises(messages.Garbage):
            messages.receive(ours, time.monotonic() + 200)


def test_no_message_in_time_is_too_late() -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(messages.TooLate):
        messages.receive(ours, time.monotonic() + 0.05)


def test_nursery_that_was_started_ahead_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(nursery_process, "_ahead", [])

    def start() -> object:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(nursery_process, "_start", start)
    nursery_process.start_ahead()
    nursery_process.start_ahead()
    assert [nursery_process.started(), nursery_process.started()] == made
    assert len(made) == 2


def test_judge_command_starts_the_nursery_before_it_imports_pytorch() -> None:
    code = """
import sys
from tilesmith import nursery_process
def start_ahead():
    print("torch" in sys.modules)
    sys.exit(3)
nursery_process.start_ahead = start_ahead
from tilesmith.cli import app
app(["judge", "softmax", "candidate.py"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout.strip()) == (3, "False")


def test_comparison_does_not_import_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes"):
        monkeypatch.setitem(sys.modules, slow, None)  # importing it raises ImportError
    values = torch.ones(2, 3)
    with rounded(0):
        drawn = values + values
    assert compare(2 * values, 2 * values.double(), [drawn], 1, 0.0).passed
