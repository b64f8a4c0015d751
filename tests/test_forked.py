"""Forks behave as programs of their own do, as far as those who start them can see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import forked

pytestmark = pytest.mark.usefixtures("forked")
LAUNCHER: Any = import_module(forked.TORCHRUN_STARTS_IN)  # here, before anything replaces the Popen that it imports


def test_a_fork_has_its_own_environment_folder_arguments_and_status(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "print(os.environ['COLOUR'], os.getcwd(), sys.argv[1:], sys.stdin.read(), 'pytest' in sys.modules)\n"
        "sys.exit(3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "one"],
        env={"COLOUR": "red"}, cwd=tmp_path, input="said", capture_output=True, text=True,
    )  # fmt: skip
    is_a_fork = not torch.cuda.is_available()
    assert (done.returncode, done.stdout) == (3, f"red {tmp_path} ['one'] said {is_a_fork}\n"), done.stderr


def test_an_error_is_told_and_a_module_runs_too(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('on purpose')\n")
    for words in (["broken.py"], ["-m", "broken"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.endswith("ValueError: on purpose\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="beside a GPU the program is no fork")
def test_a_fork_that_hangs_ends_with_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "LONGEST_SECONDS", 1)
    done = subprocess.run([sys.executable, "-c", "import time\ntime.sleep(500)"], capture_output=True, text=True)
    assert done.returncode == -signal.SIGALRM
    assert "most recent call first" in done.stderr


# By its path: several folders of tests have a module called conftest.
PLUGIN = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("shared", {str(Path(__file__).with_name("conftest.py"))!r})
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
shared.LONGEST_SECONDS["fast"] = 1
globals().update((name, value) for name, value in vars(shared).items() if not name.startswith("__"))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="beside a GPU the program is no fork")
def test_a_test_that_hangs_fails_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "test_hanging.py").write_text("import time\n\ndef test_hangs():\n    time.sleep(500)\n")
    options = ["-p", "plugin", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_hanging.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGALRM, done.stdout
    assert "most recent call first" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="beside a GPU the program is no fork")
def test_a_fork_of_a_test_that_hangs_ends_with_it(tmp_path: Path) -> None:
    """Else pytest-xdist would wait for ever: the fork has the pipe of its parent."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "test_hanging.py").write_text(
        "import os, time\n\ndef test_hangs():\n    os.fork()\n    time.sleep(500)\n\ndef test_after():\n    pass\n"
    )
    options = ["-p", "plugin", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_hanging.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="beside a GPU the program is no fork")
def test_torchrun_forks_where_its_modules_were_imported_before() -> None:
    command = [sys.executable, "-c", "import sys; print('pytest' in sys.modules)"]
    process = LAUNCHER.Popen(args=command, env=dict(os.environ), stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0] == "True\n"


def test_another_thread_starts_a_program_of_its_own() -> None:
    """A fork of it would destroy what the main thread keeps, and may wait for ever."""
    command = [sys.executable, "-c", "import sys; print('pytest' in sys.modules)"]
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(subprocess.run, command, capture_output=True, text=True).result()
    assert done.stdout == "False\n"
