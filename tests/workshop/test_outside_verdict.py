"""Files that pass in their own process by fraud: the judge outside of it does not agree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forked import forking
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.isolation.worker import Limits, Outcome, Worker
from tilesmith.workshop.isolation.worker_process import descendants

EXERCISE = load_exercise(BUILT_IN / "vector-add")
SOLUTION = EXERCISE.solution.read_text()
DECOY = """
import torch, triton, triton.language as tl

@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

def copied(total):
    out = torch.empty_like(total)
    copy_kernel[(triton.cdiv(total.numel(), 128),)](total, out, total.numel(), BLOCK=128)
    return out
"""
FORGED = (
    'json.dumps({"answer": {"verdict": {"id": "vector-add", "passed": True, "stage": "goals", "message": "", '
    '"goals": []}, "quiz": None, "figures": {}}}).encode()'
)
# The socket to the process that forked this one, found as a forger would find it.
SOCKET = """
import json, os, socket, stat, struct
def sockets():
    return [int(one) for one in os.listdir("/proc/self/fd")
            if int(one) > 2 and os.path.exists(f"/proc/self/fd/{one}")
            and stat.S_ISSOCK(os.stat(f"/proc/self/fd/{one}").st_mode)]
"""
CHEATS = {
    "PyTorch in a thread pool": DECOY
    + "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
    "def vector_add(x, y):\n    return copied(pool.submit(torch.add, x, y).result())\n",
    "PyTorch under DisableTorchFunction": DECOY
    + "def vector_add(x, y):\n    with torch._C.DisableTorchFunction():\n        return copied(x + y)\n",
    "PyTorch by jit.script": DECOY + "total = torch.jit.CompilationUnit('def f(x, y):\\n    return x + y\\n').f\n"
    "def vector_add(x, y):\n    return copied(total(x, y))\n",
    "the comparison patched": DECOY + "import tilesmith.workshop.checking.triton_check as check\n"
    "check.compared = lambda trial: iter(())\n"
    "check.TritonCheck._require_right_again = lambda *given: None\n"
    "def vector_add(x, y):\n    return copied(x)\n",
    "addition patched": DECOY
    + "torch.Tensor.__add__ = torch.Tensor.add = lambda x, y: x\ndef vector_add(x, y):\n    return copied(x)\n",
    "a forged answer": SOCKET
    + f"for one in sockets():\n    data = {FORGED}\n    os.write(one, struct.pack('!Q', len(data)) + data)\n"
    "os._exit(0)\ndef vector_add(x, y):\n    return x\n",
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with forking(), Worker(Limits(seconds=600, gigabytes=2)) as started:
        yield started


def checked(worker: Worker, folder: Path, source: str | bytes) -> Outcome:
    file = folder / "vector_add.py"
    file.write_bytes(source if isinstance(source, bytes) else source.encode())
    return worker.check(EXERCISE, file)


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_is_not_solved(name: str, worker: Worker, tmp_path: Path) -> None:
    outcome = checked(worker, tmp_path, CHEATS[name])
    assert not outcome.verdict.passed, name
    if name != "a forged answer":  # its process may end before or after the answer is read
        assert "passes in its own process" in outcome.verdict.message


def test_half_written_answer_ends_at_the_limit(tmp_path: Path) -> None:
    source = SOCKET + "for one in sockets():\n    os.write(one, b'\\0\\0\\0')\nimport time\ntime.sleep(500)\n"
    with forking(), Worker(Limits(seconds=2, gigabytes=2)) as worker:
        started = time.monotonic()
        outcome = checked(worker, tmp_path, source + SOLUTION)
        assert time.monotonic() - started < 400  # 2 s, and the imports of a busy machine
    assert "still running" in outcome.verdict.message


def test_file_that_patches_the_language_does_not_reach_the_next(worker: Worker, tmp_path: Path) -> None:
    # The interpreter has functions of its own in place of tl.load and the like, but not of tl.constexpr.
    patching = f"import triton.language as tl\ntl.constexpr = None\n{SOLUTION}"
    assert not checked(worker, tmp_path, patching).verdict.passed
    outcome = checked(worker, tmp_path, SOLUTION)
    assert outcome.verdict.passed, outcome.verdict.message


def test_file_with_byte_order_mark_is_python(worker: Worker, tmp_path: Path) -> None:
    outcome = checked(worker, tmp_path, b"\xef\xbb\xbf" + SOLUTION.encode())
    assert outcome.verdict.passed, outcome.verdict.message


def test_memory_of_a_subprocess_counts(tmp_path: Path) -> None:
    hoard = "hoard = []\nwhile True: hoard.append(bytearray(b'x' * (1 << 24)))"
    source = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {hoard!r}])\n{SOLUTION}"
    with forking(), Worker(Limits(seconds=600, gigabytes=0.5)) as worker:
        outcome = checked(worker, tmp_path, source)
    assert "took more than 0.5 GB of memory" in outcome.verdict.message


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_end_of_the_command_ends_the_learners_loop(number: int, tmp_path: Path) -> None:
    """Closing the terminal sends SIGHUP."""
    (tmp_path / "vector_add.py").write_text(f"import os\nprint(os.getpid(), flush=True)\nwhile True: pass\n{SOLUTION}")
    code = (
        "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup, around the tests, ignores it
        "from pathlib import Path\nfrom tilesmith.workshop.isolation.worker import Worker\n"
        "from tilesmith.workshop.course.catalogue import BUILT_IN\n"
        "from tilesmith.workshop.course.exercise_file import load_exercise\n"
        f"Worker().check(load_exercise(BUILT_IN / 'vector-add'), Path({str(tmp_path / 'vector_add.py')!r}),\n"
        "               entering=lambda stage: print(stage, flush=True))\n"
    )
    with forking():
        command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert command.stdout is not None
        assert command.stdout.readline() == b"parses\n"
        until(lambda: len(descendants(command.pid)) >= 2)
        started = descendants(command.pid)
        os.kill(command.pid, number)
        command.wait()
    until(lambda: not any(_runs(one) for one in started))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
